// Two runs side by side: the list shows what became of each sample, the detail both answers with their difference.

const page = JSON.parse(byId('page-data').textContent);

class CompareBrowserView {
  constructor(base, candidate, paired) {
    Object.assign(this, { base, candidate, paired, noun: 'pair', marking: true });
    this.length = paired.base.length;
    this.scored = [...this.scoredBy('mean', 'unscored', false), ...this.scoredBy('label_mean', 'label_unscored', true)];
    this.index = this.combinedIndex();
    this.shares = new Set(this.scored.filter(({ label, within, lower }) => !label && within && !lower).map(({ name }) => name));
  }

  // What samples are compared by, pairs or labels of evaluation methods: the columns of both runs, how much better the
  // candidate is (null where a side has no score), where either run has it at all, and where both do and differ.
  scoredBy(means, unscored, label) {
    const stores = [this.base, this.candidate];
    const names = [...new Set(stores.flatMap(({ index }) => Object.keys(index[means])))];
    return names.map((name) => {
      const [before, after] = stores.map(({ index }) => index[means][name] ?? []);
      const [lost, lacking] = stores.map(({ index }) => index[unscored][name] ?? []);
      const lower = !label && page.lower_is_better.includes(name);
      // Of items: perplexity is better when lower, and the log-likelihood of an item when higher.
      const change = (from, to) => (from === null || to === null ? null : lower ? from - to : to - from);
      return {
        name, label, lower, before, after,
        within: [...before, ...after].every((mean) => mean === null || (mean >= 0 && mean <= 1)),
        change: this.rows((b, c) => change(before[b] ?? null, after[c] ?? null)),
        there: this.rows((b, c) => (lost[b] ?? lacking[c] ?? null) !== null),
        differs: this.rows((b, c) => (lost[b] ?? null) !== null && (lacking[c] ?? null) !== null && (before[b] ?? null) !== (after[c] ?? null)),
      };
    });
  }

  // The columns that the browser filters by, one entry a pair of samples.
  combinedIndex() {
    const { base, candidate } = this;
    const facets = {};
    for (const name of Object.keys({ ...base.index.facets, ...candidate.index.facets })) {
      const values = [];
      const codes = this.rows((b, c) => {
        const facet = b >= 0 ? base.index.facets[name] : candidate.index.facets[name];
        const code = facet?.codes[b >= 0 ? b : c] ?? -1;
        if (code < 0) return -1;
        if (!values.includes(facet.values[code])) values.push(facet.values[code]);
        return values.indexOf(facet.values[code]);
      });
      facets[name] = { values, codes };
    }
    return {
      item: this.rows((b, c) => (b >= 0 ? base.index.item[b] : candidate.index.item[c])),
      name: this.rows((b, c) => (b >= 0 ? base.index.name[b] : candidate.index.name[c])),
      facets,
      mean: Object.fromEntries(this.scored.filter(({ label }) => !label).map(({ name, change }) => [name, change])),
    };
  }

  rows(value) {
    return this.paired.base.map((b, i) => value(b, this.paired.candidate[i]));
  }

  outcomes() {
    return [['', 'any'], ['flipped', 'scored differently'], ['worse', 'worse'], ['better', 'better'], ['same', 'the same'], ['unscored', 'without a score on a side'], ['alone', 'in one run only']];
  }

  orders() {
    return [['', 'worse, better, the same'], ['better', 'better, worse, the same'], ['data', 'as in the dataset']];
  }

  labels() {
    return this.scored.filter(({ label }) => label).map(({ name }) => [name, name]);
  }

  chosen(query) {
    const [pair, named] = [query.get('pair'), query.get('label')];
    const asked = this.scored.filter(({ name, label }) => (named ? label && name === named : !label && name === pair));
    if (asked.length) return asked;
    const within = this.scored.filter((one) => one.within);
    return within.length ? within : this.scored; // every BLEU moves a little; that is no flip
  }

  tests(index, query) {
    const chosen = this.chosen(query);
    const some = (test) => (row) => chosen.some(({ change }) => change[row] !== null && test(change[row]));
    const alone = (row) => this.paired.base[row] < 0 || this.paired.candidate[row] < 0;
    switch (query.get('outcome') ?? '') {
      case 'flipped': return [(row) => chosen.some(({ differs }) => differs[row])];
      case 'worse': return [some((change) => change < 0)];
      case 'better': return [some((change) => change > 0)];
      case 'same': return [(row) => some((change) => change === 0)(row) && chosen.every(({ change, there }) => !there[row] || change[row] === 0)];
      case 'unscored': return [(row) => !alone(row) && chosen.some(({ change, there }) => there[row] && change[row] === null)];
      case 'alone': return [alone];
      default: return [];
    }
  }

  ordered(index, rows, query) {
    const order = query.get('order') ?? '';
    if (order === 'data') return rows;
    const chosen = this.chosen(query);
    const rank = new Map(rows.map((row) => {
      const changes = chosen.map(({ change }) => change[row]).filter((change) => change !== null);
      const worst = Math.min(0, ...changes);
      const best = Math.max(0, ...changes);
      const [first, second] = order === 'better' ? [best, -worst] : [-worst, best];
      return [row, first > 0 ? [0, -first] : second > 0 ? [1, -second] : [2, 0]];
    }));
    return rows.sort((a, b) => rank.get(a)[0] - rank.get(b)[0] || rank.get(a)[1] - rank.get(b)[1] || a - b);
  }

  row(index, row, query) {
    const [b, c] = [this.paired.base[row], this.paired.candidate[row]];
    const sign = ({ label, name }, value) => (value === null || value === undefined ? '?' : (label || this.shares.has(name)) && (value === 0 || value === 1) ? (value ? '✓' : '✗') : score(value));
    const chosen = this.chosen(query).filter(({ there }) => there[row]);
    const short = shortNames(chosen.filter(({ label }) => !label).map(({ name }) => name));
    const badges = namedChips(chosen, (one) => {
      const change = one.change[row];
      const kind = change === null ? 'unscored' : change > 0 ? 'full' : change < 0 ? 'none' : '';
      const sides = [b < 0 ? '–' : sign(one, one.before[b]), c < 0 ? '–' : sign(one, one.after[c])];
      return element('span', { class: `chip ${kind}`, title: one.name, text: `${sides.join(' → ')}${one.label ? ` ${one.name}` : short.get(one.name)}` });
    }, ({ name }) => name);
    const names = Object.values(index.facets).filter(({ values }) => values.length > 1).slice(0, 2).map(({ values, codes }) => facetValue(values[codes[row]]));
    const [store, at] = c >= 0 ? [this.candidate, c] : [this.base, b];
    return listRow(index.name[row], names, store.asked(at), badges, store.index.snippet[at]);
  }

  async side(store, row) {
    if (row < 0) return null;
    const [question, sample] = await Promise.all([store.question(row), store.sample(row)]);
    return { question, sample };
  }

  async detail(row, browser) {
    const sides = await Promise.all([this.side(this.base, this.paired.base[row]), this.side(this.candidate, this.paired.candidate[row])]);
    const there = sides.filter(Boolean);
    this.differences = new Map();
    const toggle = element('button', { type: 'button', class: 'quiet', 'aria-pressed': String(this.marking), text: 'Mark differences', onclick: () => { this.marking = !this.marking; browser.choose(browser.chosen, { read: true }); } });
    const facets = Object.entries(this.index.facets).map(([name, { values, codes }], _, all) => (codes[row] < 0 ? null : `${facetName(name, all.map(([each]) => each))}: ${facetValue(values[codes[row]])}`)).filter(Boolean);
    return [
      element('header', {},
        browser.steps(),
        element('h3', { text: `Item ${this.index.name[row]}` }),
        element('p', { class: 'dim', text: facets.join(' · ') }),
        there.length === 2 ? toggle : null),
      ...this.prompts(there),
      ...this.references(there),
      element('div', { class: 'sides' }, ...sides.map((side, i) => element('section', { 'aria-label': page.names[i] },
        element('h4', { class: 'side-name', text: page.names[i] }),
        ...(side ? this.answers(side, sides[1 - i], i ? '+' : '-') : [element('p', { class: 'dim', text: 'This run does not have it.' })])))),
    ];
  }

  // Both sides show the same difference.
  difference(repeat, first, second) {
    if (!this.differences.has(repeat)) this.differences.set(repeat, difference(first, second));
    return this.differences.get(repeat);
  }

  prompts(there) {
    const [first, second] = there;
    if (!second || first.question.prompt === second.question.prompt) return [element('h4', { text: 'Prompt' }), promptView(first.question)];
    const steps = this.marking && difference(first.question.prompt, second.question.prompt);
    const box = (side, kind) => (steps ? element('div', { class: 'prompt', tabindex: '0', role: 'region', 'aria-label': 'Prompt' }, diffText(steps, kind)) : promptView(side.question));
    return [element('h4', { text: 'Prompts, which differ' }), element('div', { class: 'sides' }, box(first, '-'), box(second, '+'))];
  }

  references(there) {
    const texts = [...new Set(there.flatMap(({ question }) => question.references.map(asText)))];
    return texts.length ? [element('h4', { text: texts.length > 1 ? 'References' : 'Reference' }), ...texts.map((text) => textBlock(text, { class: 'reference' }))] : [];
  }

  answers({ question, sample }, other, kind) {
    return sample.responses.map((response, repeat) => {
      const theirs = other?.sample.responses[repeat];
      const steps = this.marking && response.text && theirs?.text
        ? this.difference(repeat, ...(kind === '-' ? [response.text, theirs.text] : [theirs.text, response.text])) : null;
      return responseView(question, sample, repeat, this.shares, steps ? () => diffText(steps, kind) : markedText);
    });
  }
}

async function openComparison() {
  const paired = unpackElement(document.querySelector('script[data-name="paired"]'));
  const stores = [new Store('base'), new Store('candidate')];
  const columns = await paired;
  await openBrowser(stores, ([base, candidate]) => {
    const searched = [base, candidate].map((store) => {
      const texts = new TextIndex(store);
      store.onblock = (b, block) => texts.add(b, block);
      return texts;
    });
    const view = new CompareBrowserView(base, candidate, columns);
    const texts = {
      search(query) {
        const [inBase, inCandidate] = searched.map((each) => each.search(query));
        return inBase && Uint8Array.from(columns.base, (b, i) => (b >= 0 && inBase[b]) || (columns.candidate[i] >= 0 && inCandidate[columns.candidate[i]]) || 0);
      },
    };
    return { combined: view, texts, view };
  });
}

openComparison();

// Two runs side by side: the list shows what became of each sample, the detail both answers with their difference.

const page = JSON.parse(byId('page-data').textContent);

class CompareBrowserView {
  constructor(base, candidate, paired) {
    Object.assign(this, { base, candidate, paired, noun: 'pair', marking: true });
    this.length = paired.base.length;
    this.index = this.combinedIndex();
    const within = (pair) => [base, candidate].every(({ index }) => (index.mean[pair] ?? []).every((mean) => mean === null || (mean >= 0 && mean <= 1)));
    this.shares = new Set(Object.keys(this.index.mean).filter((pair) => within(pair) && !page.lower_is_better.includes(pair)));
  }

  // The columns that the browser filters by, one entry a pair of samples.
  combinedIndex() {
    const { base, candidate } = this;
    const pairs = [...new Set([...Object.keys(base.index.mean), ...Object.keys(candidate.index.mean)])];
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
      passed: {},
      mean: Object.fromEntries(pairs.map((pair) => [pair, this.rows((b, c) => this.change(pair, b, c))])),
    };
  }

  rows(value) {
    return this.paired.base.map((b, i) => value(b, this.paired.candidate[i]));
  }

  // How much better the candidate is; null where a side has no score.
  change(pair, b, c) {
    const before = b < 0 ? null : this.base.index.mean[pair]?.[b];
    const after = c < 0 ? null : this.candidate.index.mean[pair]?.[c];
    if (before === null || before === undefined || after === null || after === undefined) return null;
    // Of items: perplexity is better when lower, and the log-likelihood of an item when higher.
    return page.lower_is_better.includes(pair) ? before - after : after - before;
  }

  outcomes() {
    return [['', 'any'], ['flipped', 'scored differently'], ['worse', 'worse'], ['better', 'better'], ['same', 'the same'], ['unscored', 'without a score on a side'], ['alone', 'in one run only']];
  }

  orders() {
    return [['', 'worse, better, the same'], ['better', 'better, worse, the same'], ['data', 'as in the dataset']];
  }

  chosenPairs(index, query) {
    const pair = this.stripped(query.get('pair'));
    if (pair && index.mean[pair]) return [pair];
    return this.shares.size ? [...this.shares] : Object.keys(index.mean); // every BLEU moves a little; that is no flip
  }

  // Samples have scores, not reductions: "pass@8(exact_match),strict" leads to the samples of "exact_match,strict".
  stripped(pair) {
    if (!pair || this.index.mean[pair]) return pair;
    return pair.replace(/^[^(]*\((.*)\)(,[^,]*)$/, '$1$2');
  }

  test(index, query) {
    const pairs = this.chosenPairs(index, query);
    const some = (test) => (row) => pairs.some((pair) => test(index.mean[pair][row]));
    const alone = (row) => this.paired.base[row] < 0 || this.paired.candidate[row] < 0;
    switch (query.get('outcome') ?? '') {
      case 'flipped': return some((change) => change !== null && change !== 0);
      case 'worse': return some((change) => change !== null && change < 0);
      case 'better': return some((change) => change !== null && change > 0);
      case 'same': return (row) => pairs.every((pair) => index.mean[pair][row] === 0);
      case 'unscored': return (row) => !alone(row) && pairs.some((pair) => index.mean[pair][row] === null);
      case 'alone': return alone;
      default: return null;
    }
  }

  ordered(index, rows, query) {
    const order = query.get('order') ?? '';
    if (order === 'data') return rows;
    const pairs = this.chosenPairs(index, query);
    const rank = new Map(rows.map((row) => {
      const changes = pairs.map((pair) => index.mean[pair][row]).filter((change) => change !== null);
      const worst = Math.min(0, ...changes);
      const best = Math.max(0, ...changes);
      const [first, second] = order === 'better' ? [best, -worst] : [-worst, best];
      return [row, first > 0 ? [0, -first] : second > 0 ? [1, -second] : [2, 0]];
    }));
    return rows.sort((a, b) => rank.get(a)[0] - rank.get(b)[0] || rank.get(a)[1] - rank.get(b)[1] || a - b);
  }

  row(index, row, query) {
    const [b, c] = [this.paired.base[row], this.paired.candidate[row]];
    const sign = (pair, value) => (value === null || value === undefined ? '?' : this.shares.has(pair) && (value === 0 || value === 1) ? (value ? '✓' : '✗') : score(value));
    const badges = namedChips(this.chosenPairs(index, query), (pair, name) => {
      const change = index.mean[pair][row];
      const kind = change === null ? 'unscored' : change > 0 ? 'full' : change < 0 ? 'none' : '';
      const sides = [b < 0 ? '–' : sign(pair, this.base.index.mean[pair]?.[b]), c < 0 ? '–' : sign(pair, this.candidate.index.mean[pair]?.[c])];
      return element('span', { class: `chip ${kind}`, title: pair, text: `${sides.join(' → ')}${name}` });
    });
    const names = Object.values(index.facets).filter(({ values }) => values.length > 1).slice(0, 2).map(({ values, codes }) => values[codes[row]]);
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
    const facets = Object.entries(this.index.facets).map(([name, { values, codes }], _, all) => (codes[row] < 0 ? null : `${facetName(name, all.map(([each]) => each))}: ${values[codes[row]]}`)).filter(Boolean);
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

// The report of one run: what the list of samples shows, and the table of facets.

const badge = (kind, text, title) => element('span', { class: `chip ${kind}`, text, title });

const resultsData = JSON.parse(byId('results-data').textContent);

class RunBrowserView {
  constructor(store) {
    this.store = store;
    // An entry holds all repeats of its item, and several models or prompts have one each.
    const items = new Set(store.index.item).size;
    this.noun = !store.index.n.some((n) => n > 1) ? 'sample' : items === store.length ? 'item' : 'entry';
    const within = (values) => values.every((value) => value === null || (value >= 0 && value <= 1));
    // Only these can be right or wrong; a BLEU of 46 is neither.
    this.shares = new Set(Object.entries(store.index.mean)
      .filter(([pair, values]) => within(values) && !resultsData.lower_is_better.includes(pair)).map(([pair]) => pair));
  }

  outcomes(index) {
    const some = (column) => column.some((value) => value > 0);
    const when = (condition, ...entries) => (condition ? entries : []);
    const nothing = Object.entries(index.nothing).filter(([, column]) => some(column));
    return [
      ['', 'any'],
      ...when(this.shares.size, ['right', 'right (score 1)'], ['wrong', 'wrong (score 0)'], ['part', 'in between']),
      ...when(this.pairs(index).length > this.shares.size, ['lowest', 'lowest quarter'], ['highest', 'highest quarter']),
      ...when([...Object.values(index.unscored), ...Object.values(index.label_unscored)].some(some), ['unscored', 'unscored']),
      ...when(some(index.failed), ['failed', 'request failed']),
      ...nothing.map(([name]) => [`nothing:${name}`, `${name} found nothing`]),
      ...when(some(index.disagree), ['disagree', 'repeats disagree']),
      ...when(some(index.cut), ['cut', 'cut off at the token limit']),
    ];
  }

  orders(index) {
    return [['', 'as in the dataset'], ...(this.pairs(index).length ? [['low', 'lowest score first'], ['high', 'highest score first']] : []), ['long', 'longest response first']];
  }

  pairs(index) {
    return Object.keys(index.mean);
  }

  chosenPairs(index, query) {
    const pair = query.get('pair');
    return pair && index.mean[pair] ? [pair] : this.pairs(index);
  }

  labels(index) {
    return Object.keys(index.label_unscored).flatMap((label) => [[`${label}:1`, `${label}: passed`], [`${label}:0`, `${label}: did not pass`], [`${label}:?`, `${label}: unscored`]]);
  }

  tests(index, query) {
    return [this.ofLabel(index, query.get('label') ?? ''), this.ofOutcome(index, query)].filter(Boolean);
  }

  ofLabel(index, chosen) {
    if (!chosen) return null;
    const [label, wanted] = [chosen.slice(0, chosen.lastIndexOf(':')), chosen.slice(chosen.lastIndexOf(':') + 1)];
    return wanted === '?' ? (row) => index.label_unscored[label]?.[row] > 0 : (row) => index.passed[label]?.[row] === Number(wanted);
  }

  ofOutcome(index, query) {
    const outcome = query.get('outcome') ?? '';
    const pairs = this.chosenPairs(index, query);
    const means = (test) => (row) => pairs.some((pair) => this.shares.has(pair) && index.mean[pair][row] !== null && test(index.mean[pair][row]));
    if (outcome === 'right') return means((mean) => mean === 1);
    if (outcome === 'wrong') return means((mean) => mean === 0);
    if (outcome === 'part') return means((mean) => mean > 0 && mean < 1);
    if (outcome === 'lowest' || outcome === 'highest') return this.quarter(index, pairs, outcome);
    if (outcome === 'unscored') {
      const labels = query.get('pair') ? [] : Object.values(index.label_unscored);
      const columns = [...pairs.map((pair) => index.unscored[pair]), ...labels];
      return (row) => columns.some((column) => column[row] > 0);
    }
    if (outcome.startsWith('nothing:')) return (row) => (index.nothing[outcome.slice(8)] ?? [])[row] > 0;
    if (index[outcome]) return (row) => index[outcome][row] > 0;
    if (query.get('pair')) return (row) => pairs.some((pair) => index.mean[pair][row] !== null || index.unscored[pair][row] !== null);
    return null;
  }

  quarter(index, pairs, which) {
    const column = index.mean[pairs.find((pair) => !this.shares.has(pair)) ?? pairs[0]] ?? [];
    const sorted = column.filter((mean) => mean !== null).sort((a, b) => a - b);
    const [low, high] = [sorted[Math.floor(sorted.length / 4)], sorted[Math.ceil((3 * sorted.length) / 4) - 1]];
    return (row) => column[row] !== null && (which === 'lowest' ? column[row] <= low : column[row] >= high);
  }

  ordered(index, rows, query) {
    const order = query.get('order') ?? '';
    const pair = this.chosenPairs(index, query)[0];
    const missing = order === 'low' ? Infinity : -Infinity;
    const value = (row) => index.mean[pair]?.[row] ?? missing;
    if (order === 'low') return rows.sort((a, b) => value(a) - value(b) || a - b);
    if (order === 'high') return rows.sort((a, b) => value(b) - value(a) || a - b);
    if (order === 'long') return rows.sort((a, b) => index.length[b] - index.length[a] || a - b);
    return rows;
  }

  row(index, row, query) {
    const chosen = this.chosenPairs(index, query);
    const shares = chosen.filter((pair) => this.shares.has(pair));
    const scored = (shares.length ? shares : chosen).filter((pair) => index.mean[pair][row] !== null || index.unscored[pair][row]);
    const names = shortNames(scored);
    const badges = namedChips(scored, (pair) => {
      const mean = index.mean[pair][row];
      const kind = mean === null ? 'unscored' : !this.shares.has(pair) ? '' : mean === 1 ? 'full' : mean === 0 ? 'none' : 'part';
      const sign = { unscored: '?', full: '✓', none: '✗' }[kind];
      return badge(kind, `${sign ?? score(mean)}${names.get(pair)}`, `${pair}: ${score(mean)}`);
    });
    if (index.failed[row]) badges.unshift(badge('unscored', 'failed'));
    const places = Object.values(index.facets).slice(0, 2).filter(({ values }) => values.length > 1).map(({ values, codes }) => facetValue(values[codes[row]]));
    return listRow(index.name[row], places, this.store.asked(row), badges, index.snippet[row]);
  }

  async detail(row, browser) {
    const { index } = this.store;
    const [question, sample] = await Promise.all([this.store.question(row), this.store.sample(row)]);
    const facets = Object.entries(index.facets).map(([name, { values, codes }], _, all) => (codes[row] < 0 ? null : `${facetName(name, all.map(([each]) => each))}: ${facetValue(values[codes[row]])}`)).filter(Boolean);
    return [
      element('header', {},
        browser.steps(),
        element('h3', { text: `Item ${index.name[row]}` }),
        element('p', { class: 'dim', text: [...(index.name[row] === index.item[row] ? [] : [index.item[row]]), ...facets].join(' · ') }),
        this.siblings(row)),
      ...sampleView(question, sample, this.shares),
    ];
  }

  // The same item of the other models and prompts, one press away.
  siblings(row) {
    const { index } = this.store;
    const pair = this.pairs(index)[0];
    const same = [];
    for (let other = 0; other < index.item.length; other++) if (index.item[other] === index.item[row]) same.push(other);
    if (same.length < 2) return null;
    const several = Object.entries(index.facets).filter(([, { values }]) => values.length > 1);
    return element('nav', { class: 'siblings', 'aria-label': 'The same item elsewhere' }, ...same.slice(0, 40).map((other) => {
      const query = new URLSearchParams({ item: index.item[row] });
      for (const [name, { values, codes }] of several) if (codes[other] >= 0) query.set(`f.${name}`, values[codes[other]]);
      const mean = pair === undefined ? null : index.mean[pair][other];
      const name = several.map(([, { values, codes }]) => facetValue(values[codes[other]])).filter(Boolean).join(' · ');
      return element('a', { href: `#samples?${query}`, 'aria-current': other === row ? 'true' : null, text: `${name || index.item[other]} ${mean === null ? '?' : this.shares.has(pair) && (mean === 1 || mean === 0) ? (mean ? '✓' : '✗') : score(mean)}` });
    }));
  }
}

// Two facets against each other for one score. Facets that are not shown have to have one value only.
function facetTable() {
  const { rows } = resultsData;
  const values = new Map();
  for (const row of rows) for (const [name, value] of Object.entries(row.facets)) {
    if (!values.has(name)) values.set(name, new Set());
    values.get(name).add(value);
  }
  const names = [...values.keys()].filter((name) => values.get(name).size > 1);
  const choices = names.map((name) => [name, facetName(name, [...values.keys()])]);
  const scores = [...new Set(rows.map((row) => row.name))];
  if (!names.length || scores.length * values.get(names[0]).size < 4) return;
  byId('facets').hidden = false;
  byId('facets-link').hidden = false;
  const groups = (score) => rows.filter(({ name }) => name === score).length;
  const richest = [...scores].sort((a, b) => groups(b) - groups(a))[0];
  options(byId('facet-score'), [['', 'all scores'], ...scores.map((name) => [name, name])], names.length > 1 ? richest : '');
  options(byId('facet-rows'), choices, names.at(-1));
  options(byId('facet-columns'), [...choices, ['', 'scores']], names.length > 1 ? names[0] : '');
  byId('facet-form').addEventListener('input', () => drawPivot(rows, values));
  byId('facet-form').addEventListener('submit', (event) => event.preventDefault());
  drawPivot(rows, values);
}

function drawPivot(rows, values) {
  const [chosen, by, across] = ['facet-score', 'facet-rows', 'facet-columns'].map((id) => byId(id).value);
  const column = (row) => (across ? row.facets[across] ?? 'all' : row.name);
  const line = (row) => row.facets[by] ?? 'all';
  const used = rows.filter((row) => !chosen || row.name === chosen);
  const cells = new Map();
  for (const row of used) {
    const key = JSON.stringify([line(row), column(row)]);
    cells.set(key, [...(cells.get(key) ?? []), row]);
  }
  const columns = [...new Set(used.map(column))];
  const lines = [...new Set(used.map(line))];
  const cell = (name, head) => {
    const found = cells.get(JSON.stringify([name, head])) ?? [];
    if (found.length !== 1) return element('td', { class: 'num dim', text: found.length ? `${found.length} groups` : '–' });
    const alike = used.filter((row) => row.name === found[0].name && row.value !== null).map((row) => row.value);
    const [low, high] = [Math.min(...alike), Math.max(...alike)];
    const share = high > low ? (found[0].value - low) / (high - low) : 0;
    const made = element('td', { class: 'num heat', title: plural(found[0].items, 'item'), text: found[0].text });
    made.style.setProperty('--heat', `${Math.round(32 * (found[0].higher === false ? 1 - share : share))}%`);
    return made;
  };
  byId('facet-table').classList.toggle('tall', lines.length > 24);
  byId('pivot').replaceChildren(
    element('thead', {}, element('tr', {}, element('th', { scope: 'col', text: facetName(by, [...values.keys()]) }), ...columns.map((text) => element('th', { scope: 'col', class: 'num' }, element('bdi', { text }))))),
    element('tbody', {}, ...lines.map((name) => element('tr', {}, element('th', { scope: 'row' }, element('bdi', { text: name })), ...columns.map((head) => cell(name, head))))));
}

facetTable();
openBrowser([new Store('run')], ([store]) => {
  const texts = new TextIndex(store);
  store.onblock = (b, block) => texts.add(b, block);
  return { combined: store, texts, view: new RunBrowserView(store) };
});

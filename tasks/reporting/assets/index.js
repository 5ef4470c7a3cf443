// The runs: they are in the script beside the page, and are found, sorted and compared here.

const { runs, comparisons, store, folder } = globalThis.nightjarRuns ?? { runs: [], comparisons: [], store: null, folder: '' };
const PAGE_ROWS = 200;

// Key, heading, whether it is a number, whether it is shown at first, and what a cell holds.
const COLUMNS = [
  ['when', 'Started (UTC)', false, true, (run) => run.when],
  ['name', 'Run', false, true, (run) => [run.link ? element('a', { href: run.link, title: run.id, text: run.name }) : run.name, run.status === 'ok' ? null : element('span', { class: 'chip none', text: run.status })]],
  ['benchmark', 'Benchmark', false, true, (run) => run.benchmark],
  ['models', 'Models', false, true, (run) => run.models],
  ['value', 'Headline', true, true, (run) => [run.headline, element('div', { class: 'dim', text: run.pair }), run.stopped ? element('div', { class: 'dim', text: run.stopped }) : null]],
  ['interval', 'Interval', false, false, (run) => run.interval],
  ['items', 'Items', true, false, (run) => (run.items === null ? '' : count(run.items))],
  ['asked', 'Asked', true, true, (run) => count(run.asked)],
  ['reused', 'Reused', true, false, (run) => count(run.reused)],
  ['tokens', 'Tokens', true, false, (run) => (run.tokens === null ? '' : count(run.tokens))],
  ['cost', 'Cost', true, false, (run) => run.money],
  ['seconds', 'Seconds', true, false, (run) => (run.seconds === null ? '' : count(Math.round(run.seconds)))],
  ['changed', 'Changed since the run before', false, true, (run) => run.changed],
];

const CLASSES = { when: 'nowrap', name: 'given', benchmark: 'names', models: 'names', value: 'num headline' };

class RunsTable {
  constructor() {
    this.order = { key: 'when', sign: -1 };
    this.rows = PAGE_ROWS;
    this.ticked = [];
    this.columns = new Set(remembered() ?? COLUMNS.filter(([, , , first]) => first).map(([key]) => key));
    for (const run of runs) run.text = [run.name, run.benchmark, run.models, run.status, run.pair, run.changed, run.stopped ?? '', run.when].join(' ').toLowerCase();
  }

  start() {
    const form = byId('finder');
    if (!form) return;
    form.hidden = false;
    this.choices('of-benchmark', 'all', runs.map((run) => run.benchmark));
    this.choices('of-model', 'all', runs.flatMap((run) => run.points.map(([name]) => name)));
    this.choices('of-status', 'any', runs.map((run) => run.status));
    byId('columns').append(...COLUMNS.map(([key, heading]) => element('label', {},
      element('input', { type: 'checkbox', value: key, checked: this.columns.has(key) }), ` ${heading}`)));
    form.addEventListener('submit', (event) => event.preventDefault());
    byId('clear').addEventListener('click', () => {
      for (const id of ['find', 'of-benchmark', 'of-model', 'of-status']) byId(id).value = '';
      this.choose();
      byId('find').focus();
    });
    form.addEventListener('input', () => this.choose());
    byId('more').addEventListener('click', () => { this.rows += 5 * PAGE_ROWS; this.draw(); });
    this.draw();
  }

  choose() {
    this.columns = new Set([...byId('columns').querySelectorAll(':checked')].map(({ value }) => value));
    remember([...this.columns]);
    this.rows = PAGE_ROWS;
    this.draw();
  }

  choices(id, all, values) {
    const known = [...new Set(values)].sort();
    options(byId(id), [['', all], ...known.map((value) => [value, value])], '');
    byId(id).parentElement.hidden = known.length < 2;
  }

  found() {
    const words = byId('find').value.toLowerCase().split(/\s+/).filter(Boolean);
    const [benchmark, model, status] = ['of-benchmark', 'of-model', 'of-status'].map((id) => byId(id).value);
    const kept = runs.filter((run) => words.every((word) => run.text.includes(word)) && (!benchmark || run.benchmark === benchmark)
      && (!model || run.points.some(([name]) => name === model)) && (!status || run.status === status));
    const { key, sign } = this.order;
    const empty = (value) => value === null || value === '';
    const compare = (a, b) => (typeof a === 'number' ? a - b : a.localeCompare(b, undefined, { numeric: true }));
    // Runs without the value stay at the end in either order.
    return kept.sort(({ [key]: a }, { [key]: b }) => (empty(a) || empty(b) ? empty(a) - empty(b) : sign * compare(a, b)));
  }

  draw() {
    const found = this.found();
    const columns = COLUMNS.filter(([key]) => this.columns.has(key));
    byId('headings').replaceChildren(element('tr', {}, element('th', { scope: 'col' }, element('span', { class: 'offscreen', text: 'Compare' })),
      ...columns.map(([key, text, numeric]) => this.heading(key, text, numeric))));
    byId('found').replaceChildren(...found.slice(0, this.rows).map((run) => this.row(run, columns)));
    byId('status').textContent = found.length === runs.length ? plural(runs.length, 'run') : `${count(found.length)} of ${plural(runs.length, 'run')}`;
    byId('nothing').hidden = found.length > 0;
    byId('more').hidden = found.length <= this.rows;
    byId('more').textContent = `show ${count(Math.min(5 * PAGE_ROWS, found.length - this.rows))} more`;
  }

  heading(key, text, numeric) {
    const sorted = this.order.key === key ? (this.order.sign > 0 ? 'ascending' : 'descending') : null;
    const press = () => {
      this.order = { key, sign: sorted ? -this.order.sign : numeric || key === 'when' ? -1 : 1 };
      this.draw();
      byId('headings').querySelector(`[data-key="${key}"]`).focus();
    };
    return element('th', { scope: 'col', class: numeric ? 'num' : null, 'aria-sort': sorted },
      element('button', { type: 'button', class: 'sort', 'data-key': key, text, onclick: press }));
  }

  row(run, columns) {
    const box = element('input', { type: 'checkbox', 'aria-label': `Compare ${run.name}`, checked: this.ticked.includes(run), onchange: () => this.tick(run) });
    return element('tr', { class: run.status === 'ok' ? null : 'failed' }, element('td', {}, box),
      ...columns.map(([key, , numeric, , cell]) => element('td', { class: CLASSES[key] ?? (numeric ? 'num' : null) }, ...[cell(run)].flat())));
  }

  // The last two that were ticked.
  tick(run) {
    this.ticked = this.ticked.includes(run) ? this.ticked.filter((other) => other !== run) : [...this.ticked, run].slice(-2);
    this.draw();
    const box = byId('pair');
    box.hidden = !this.ticked.length;
    box.replaceChildren(...(this.ticked.length === 2 ? comparisonOf(...this.ticked) : [element('p', { text: 'Tick a second run to compare them.' })]));
  }
}

// The comparison of two runs if it was made, else the command that makes it; the older one is the base.
function comparisonOf(one, other) {
  const [base, candidate] = runs.indexOf(one) > runs.indexOf(other) ? [one, other] : [other, one];
  const made = comparisons.find((each) => each.runs[0] === base.id && each.runs[1] === candidate.id);
  const names = [base, candidate].map((run) => (base.models === candidate.models ? run.name : run.models || run.name));
  const head = element('p', {}, element('b', { text: names.join(' → ') }),
    base.benchmark === candidate.benchmark ? null : ' They are runs of different benchmarks: what they have in common is compared.');
  if (made) return [head, element('p', {}, element('a', { href: made.link, text: 'Open the comparison' }), element('span', { class: 'dim', text: ` made ${made.when}` }))];
  const quote = (text) => (/^[\w@%+=:,./-]+$/.test(text) ? text : `'${text.replaceAll("'", "'\\''")}'`);
  const folders = base.folder && candidate.folder;
  const sides = folders ? [base.folder, candidate.folder] : [base.id, candidate.id];
  const output = folders ? ` --output ${quote(`${folder}/compared/${`${base.name}-${candidate.name}`.replace(/[^\w.-]+/g, '-').replace(/-$/, '')}`)}` : '';
  const command = `python -m flows.compare ${sides.map(quote).join(' ')}${output}${store && !folders ? ` --store ${quote(store)}` : ''}`;
  const copy = element('button', { type: 'button', class: 'quiet', text: 'Copy', onclick: () => navigator.clipboard?.writeText(command).then(() => { copy.textContent = 'Copied'; }) });
  return [head, element('p', { class: 'dim', text: folders ? 'No comparison of them yet. This makes one:' : 'This prints their comparison:' }), element('pre', { class: 'manifest', text: command }), copy];
}

function remembered() {
  try {
    return JSON.parse(localStorage.getItem('nightjar-columns'));
  } catch {
    return null; // no storage for pages from disk
  }
}

function remember(columns) {
  try {
    localStorage.setItem('nightjar-columns', JSON.stringify(columns));
  } catch {
    // as above
  }
}

function drawCourses() {
  const found = [...coursesOf(runs)];
  byId('curves').hidden = !found.length;
  byId('curves-link').hidden = !found.length;
  byId('courses').replaceChildren(...found.map(([title, lines]) => courseView(title, lines)));
}

drawCourses();
new RunsTable().start();
document.documentElement.dataset.ready = '';

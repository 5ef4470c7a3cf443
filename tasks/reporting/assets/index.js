// The index: older runs and the points of its curves come from the script beside it, as data; runs are found by any
// of their words.

function cell(content, properties = {}) {
  return element('td', properties, ...[content].flat());
}

function olderRow(run) {
  const name = run.link ? element('a', { href: run.link, title: run.id, text: run.name }) : run.name;
  const status = run.failed ? [' ', element('span', { class: 'chip none', text: run.status })] : [];
  const more = run.more ? [' ', element('span', { class: 'dim', text: `+${run.more}` })] : [];
  const headline = run.text ? [run.text, ...more, element('div', { class: 'dim', text: run.pair })] : [];
  return element('tr', { class: run.failed ? 'failed' : null },
    cell(run.when, { class: 'nowrap' }),
    cell([name, ...status], { class: 'nowrap' }),
    cell(run.benchmark),
    cell(run.models, { class: 'long' }),
    cell(headline, { class: 'num', 'data-sort': String(run.value ?? '') }),
    cell(run.items, { class: 'num', 'data-sort': String(run.n_items ?? '') }),
    cell(run.asked, { class: 'num', 'data-sort': String(run.n_asked) }),
    cell(run.cost, { class: 'num', 'data-sort': String(run.n_cost ?? '') }),
    cell(run.changed));
}

function mark([x, y, text]) {
  const made = (tag) => document.createElementNS('http://www.w3.org/2000/svg', tag);
  const [circle, title] = [made('circle'), made('title')];
  for (const [name, value] of [['cx', x], ['cy', y], ['r', 3]]) circle.setAttribute(name, value);
  title.textContent = text;
  circle.append(title);
  return circle;
}

function fromBeside(beside) {
  if (!beside) return;
  byId('found')?.append(...beside.runs.map(olderRow));
  byId('older')?.remove();
  document.querySelectorAll('g.curve').forEach((curve, at) => curve.append(...(beside.marks[at] ?? []).map(mark)));
}

function finder() {
  const field = byId('find');
  if (!field) return;
  const rows = [...byId('found').rows].map((row) => [row, row.textContent.toLowerCase()]);
  const show = () => {
    const words = field.value.toLowerCase().split(/\s+/).filter(Boolean);
    let shown = 0;
    for (const [row, text] of rows) {
      const fits = words.every((word) => text.includes(word));
      row.hidden = !fits;
      shown += fits;
    }
    byId('status').textContent = words.length ? `${count(shown)} of ${plural(rows.length, 'run')}` : '';
  };
  field.hidden = false;
  field.addEventListener('input', show);
}

fromBeside(globalThis.nightjarRuns);
finder();
document.documentElement.dataset.ready = '';

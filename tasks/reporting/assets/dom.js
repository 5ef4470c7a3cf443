// Elements are made here and nowhere else: texts go in through textContent, so that nothing a model wrote is markup.

const byId = (id) => document.getElementById(id);

function element(tag, properties = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(properties)) {
    if (value === undefined || value === null || value === false) continue;
    if (name === 'class') made.className = value;
    else if (name === 'text') made.textContent = value;
    else if (name.startsWith('on')) made.addEventListener(name.slice(2), value);
    else made.setAttribute(name, value === true ? '' : value);
  }
  for (const child of children.flat()) if (child !== null && child !== undefined && child !== false) made.append(child);
  return made;
}

// A name that is written from right to left is held apart: the numbers beside it would change places.
const isolated = (name) => (/[\u0590-\u08ff\ufb1d-\ufdff\ufe70-\ufefc]/.test(name) ? `\u2068${name}\u2069` : name);

// A facet's value; where a row has none, nothing.
const facetValue = (value) => (value === '' ? '(empty)' : isolated(value ?? ''));

function options(select, entries, chosen) {
  select.replaceChildren(...entries.map(([value, text]) => element('option', { value, text, selected: value === chosen })));
}

// What people call a facet: model and prompt have words, unless a facet of the config has that word for its name.
const WORDS = new Map([['model_name', 'Model'], ['prompt_template', 'Prompt']]);
const facetName = (name, names) => (WORDS.has(name) && !names.includes(WORDS.get(name)) ? WORDS.get(name) : name);

const grouped = new Intl.NumberFormat('en-US');
const count = (n) => grouped.format(n);
const plural = (n, noun) => `${count(n)} ${n === 1 ? noun : `${noun}s`.replace(/([^aeiou])ys$/, '$1ies')}`;

// As many digits as `numbers.decimals` gives, without the zeros at the end; what rounds to 0 has no sign.
function score(value) {
  if (value === null || value === undefined) return 'unscored';
  if (typeof value !== 'number' || Number.isInteger(value)) return String(value);
  const size = Math.abs(value);
  const digits = size >= 1e-9 && size < 0.001 ? 1 - Math.floor(Math.log10(size)) : size < 10 ? 4 : 2;
  return value.toFixed(digits).replace(/0+$/, '').replace(/\.$/, '').replace(/^-0$/, '0');
}

// A long text is shown by its beginning, with a button for the rest: a megabyte takes a browser seconds to lay out.
const LONG = 20000;
const BEGINNING = 3000;
const size = (n) => (n < 1e6 ? `${Math.round(n / 1e3)} KB` : `${Number((n / 1e6).toPrecision(2))} MB`);
const beginning = (text, end) => (text.length > end ? `${text.slice(0, end).replace(/[\uD800-\uDBFF]$/, '')}…` : text);

// `draw(end)` makes the element of the first so many characters.
function folded(length, draw) {
  if (length <= LONG) return draw(Infinity);
  const made = element('div', { class: 'folded' }, draw(BEGINNING));
  made.append(element('button', { type: 'button', class: 'quiet', text: `show all ${size(length)}`, onclick: () => made.replaceChildren(draw(Infinity)) }));
  return made;
}

const asText = (value) => (typeof value === 'string' ? value : JSON.stringify(value, null, 1));

// Addresses within the page: "#samples?pair=…&outcome=…", so that a finding or a colleague's link opens what it means.
function addressQuery() {
  const [section, query] = location.hash.slice(1).split('?');
  return { section, query: query === undefined ? null : new URLSearchParams(query) };
}

function setAddress(query) {
  const text = query.toString();
  try {
    history.replaceState(null, '', text ? `#samples?${text}` : '#samples');
  } catch {
    // some browsers refuse this for pages from disk; the address is a convenience
  }
}

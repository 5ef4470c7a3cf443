// The list of samples: search, filters, order, and one sample beside it. Only the rows in sight are in the document.

const ROW_HEIGHT = 80;

// A row of the list: whose sample it is, what was asked (once that is unpacked), how it scored, what was answered.
function listRow(name, places, asked, badges, answer) {
  return [
    element('div', { class: 'row-head' }, itemName(name), places.length ? element('span', { class: 'dim', text: places.join(' · ') }) : null),
    element('div', { class: 'row-asked', dir: 'auto', text: asked }),
    element('div', { class: 'row-answer' }, element('span', { class: 'badges' }, ...badges), element('span', { class: 'row-text', dir: 'auto', text: answer || '(no text)' })),
  ];
}

// Of a long name its beginning is left out, not the line that tells it from others.
function itemName(name) {
  const [, file, line] = /^(.*?)(:\d+)?$/s.exec(name);
  return element('b', { title: name }, element('span', { class: 'file', text: file }), line ? element('span', { class: 'line', text: line }) : null);
}

class Browser {
  constructor(store, texts, view) {
    Object.assign(this, { store, texts, view, chosen: -1, shown: [], query: new URLSearchParams() });
    this.list = byId('list');
    this.rows = byId('rows');
    this.detail = byId('detail');
    this.controls = byId('controls');
  }

  start() {
    byId('browser').hidden = false;
    this.fillControls();
    this.controls.addEventListener('input', () => this.readControls());
    this.controls.addEventListener('submit', (event) => event.preventDefault());
    this.controls.addEventListener('reset', () => this.apply(new URLSearchParams()));
    this.list.addEventListener('scroll', () => this.draw(), { passive: true });
    this.list.addEventListener('click', (event) => {
      const row = event.target.closest('[data-at]');
      if (row) this.choose(Number(row.dataset.at), { read: true, address: true });
    });
    document.addEventListener('keydown', (event) => this.key(event));
    window.addEventListener('resize', () => this.draw());
    window.addEventListener('hashchange', () => this.fromAddress(true));
    this.fromAddress(false);
  }

  fillControls() {
    const { index } = this.store;
    const pairs = Object.keys(index.mean);
    options(byId('pair'), [['', 'any pair'], ...pairs.map((pair) => [pair, pair])]);
    byId('pair-control').hidden = pairs.length < 2;
    options(byId('outcome'), this.view.outcomes(index));
    const labels = this.view.labels(index);
    options(byId('label'), [['', 'any'], ...labels]);
    byId('label-control').hidden = !labels.length;
    options(byId('order'), this.view.orders(index));
    const facets = Object.entries(index.facets).filter(([, { values }]) => values.length > 1);
    byId('facet-controls').replaceChildren(...facets.map(([name, { values }]) => {
      const select = element('select', { 'data-facet': name });
      // A value may be empty, as `any` is: those of the data have a sign before them.
      options(select, [['', 'any'], ...values.map((value) => [`=${value}`, facetValue(value)])]);
      return element('label', {}, element('span', { text: facetName(name, Object.keys(index.facets)) }), select);
    }));
  }

  // The controls, the address and the list say the same thing: the query goes from one to the others.
  readControls() {
    const query = new URLSearchParams();
    const put = (name, value) => { if (value) query.set(name, value); };
    put('q', byId('search').value.trim());
    for (const name of ['pair', 'outcome', 'label', 'order']) put(name, byId(name).value);
    for (const select of this.controls.querySelectorAll('[data-facet]')) if (select.value) query.set(`f.${select.dataset.facet}`, select.value.slice(1));
    this.apply(query, { controls: false });
  }

  fromAddress(scroll) {
    const { section, query } = addressQuery();
    if (section !== 'samples' || query === null) {
      if (!scroll) this.apply(new URLSearchParams(), { address: false });
      return;
    }
    this.apply(query, { address: false });
    if (scroll || query.size) byId('samples').scrollIntoView();
  }

  apply(query, { controls = true, address = true } = {}) {
    this.query = query;
    if (controls) this.writeControls();
    const before = this.shown[this.chosen];
    this.shown = this.find();
    if (address) setAddress(query);
    this.list.scrollTop = 0;
    const kept = before === undefined ? -1 : this.shown.indexOf(before);
    const named = query.has('sample') ? this.shown.indexOf(Number(query.get('sample'))) : -1;
    this.announce();
    if (named >= 0) this.choose(named, { read: true });
    else if (query.has('item') && this.shown.length) this.choose(0);
    else {
      this.chosen = kept;
      if (kept < 0 && this.shown.length && matchMedia('(min-width: 800px)').matches) this.choose(0);
      else this.draw();
      if (kept >= 0) this.detail.querySelector('.steps')?.replaceWith(this.steps());
    }
    if (!this.shown.length) this.detail.replaceChildren(element('p', { class: 'dim empty', text: 'No sample matches.' }));
  }

  writeControls() {
    byId('search').value = this.query.get('q') ?? '';
    for (const name of ['pair', 'outcome', 'label', 'order']) {
      const select = byId(name);
      select.value = this.query.get(name) ?? select.options[0]?.value ?? '';
    }
    for (const select of this.controls.querySelectorAll('[data-facet]')) {
      const value = this.query.get(`f.${select.dataset.facet}`);
      select.value = value === null ? '' : `=${value}`;
    }
  }

  find() {
    const { index, length } = this.store;
    const hits = this.query.get('q') ? this.texts.search(this.query.get('q')) : null;
    const tests = this.tests(index);
    const found = [];
    for (let row = 0; row < length; row++) {
      if ((!hits || hits[row]) && tests.every((test) => test(row))) found.push(row);
    }
    return this.view.ordered(index, found, this.query);
  }

  tests(index) {
    const tests = [];
    for (const [name, value] of this.query) {
      if (name === 'item') tests.push((row) => index.item[row] === value);
      if (!name.startsWith('f.')) continue;
      const facet = index.facets[name.slice(2)];
      const code = facet?.values.indexOf(value) ?? -1;
      tests.push((row) => code >= 0 && facet.codes[row] === code);
    }
    return [...tests, ...this.view.tests(index, this.query)];
  }

  announce() {
    const total = this.store.length;
    const item = this.query.get('item');
    const only = item === null ? '' : ` (item ${item} only)`;
    byId('status').textContent = this.shown.length === total
      ? `${plural(total, this.view.noun)}`
      : `${count(this.shown.length)} of ${plural(total, this.view.noun)}${only}`;
  }

  draw() {
    this.rows.style.height = `${this.shown.length * ROW_HEIGHT}px`;
    const first = Math.max(0, Math.floor(this.list.scrollTop / ROW_HEIGHT) - 4);
    const last = Math.min(this.shown.length, first + Math.ceil(this.list.clientHeight / ROW_HEIGHT) + 8);
    const drawn = [];
    for (let at = first; at < last; at++) drawn.push(this.row(at));
    this.rows.replaceChildren(...drawn);
    this.list.setAttribute('aria-activedescendant', this.chosen >= first && this.chosen < last ? `row-${this.chosen}` : '');
  }

  row(at) {
    const row = this.view.row(this.store.index, this.shown[at], this.query);
    const made = element('div', {
      class: `row${at === this.chosen ? ' chosen' : ''}`, id: `row-${at}`, role: 'option', 'data-at': at,
      'aria-selected': String(at === this.chosen), 'aria-setsize': this.shown.length, 'aria-posinset': at + 1,
    }, ...row);
    made.style.transform = `translateY(${at * ROW_HEIGHT}px)`;
    return made;
  }

  // `read`: the sample takes the list's place where there is no room for both; `address`: the address names it.
  async choose(at, { read = false, address = false } = {}) {
    if (at < 0 || at >= this.shown.length) return;
    this.chosen = at;
    if (address) {
      this.query.set('sample', this.shown[at]);
      setAddress(this.query);
    }
    const top = at * ROW_HEIGHT;
    if (top < this.list.scrollTop) this.list.scrollTop = top;
    else if (top + ROW_HEIGHT > this.list.scrollTop + this.list.clientHeight) this.list.scrollTop = top + ROW_HEIGHT - this.list.clientHeight;
    this.draw();
    const row = this.shown[at];
    const content = await this.view.detail(row, this);
    if (this.shown[this.chosen] !== row) return; // another one was chosen meanwhile
    this.detail.replaceChildren(...content);
    this.detail.scrollTop = 0;
    highlightTerms(this.detail, searchTerms(this.query.get('q') ?? ''));
    for (const prompt of this.detail.querySelectorAll('.prompt')) prompt.scrollTop = prompt.scrollHeight;
    byId('browser').classList.toggle('reading', read);
    if (read && matchMedia('(max-width: 799px)').matches) {
      byId('browser').scrollIntoView();
      this.detail.focus({ preventScroll: true });
    }
  }

  // Above a sample: back to the list where that is hidden, the samples before and after it, and its place.
  steps() {
    const step = (by, text) => element('button', {
      type: 'button', class: 'quiet', text, 'data-step': by, disabled: this.shown[this.chosen + by] === undefined,
      onclick: async () => {
        await this.choose(this.chosen + by, { read: true, address: true });
        this.detail.querySelector(`[data-step="${by}"]`)?.focus({ preventScroll: true });
      },
    });
    return element('nav', { class: 'steps', 'aria-label': 'Samples' },
      element('button', { type: 'button', class: 'quiet back', text: '← List', onclick: () => this.back() }),
      step(-1, 'Previous'), step(1, 'Next'),
      element('span', { class: 'dim', text: `${count(this.chosen + 1)} of ${count(this.shown.length)}` }));
  }

  back() {
    byId('browser').classList.remove('reading');
    this.query.delete('sample');
    setAddress(this.query);
    this.list.focus();
  }

  key(event) {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    const inBrowser = byId('browser').contains(event.target);
    if (event.target.matches('input, select, textarea')) {
      if (event.key === 'Escape' && inBrowser) this.list.focus();
      return;
    }
    if (event.key === '/') {
      event.preventDefault();
      byId('search').focus();
      byId('search').select();
      return;
    }
    const onList = event.target === this.list;
    const step = { j: 1, k: -1, ...(onList ? { ArrowDown: 1, ArrowUp: -1, PageDown: 8, PageUp: -8, Home: -Infinity, End: Infinity } : {}) }[event.key];
    if (step !== undefined && this.shown.length) {
      event.preventDefault();
      this.choose(Math.min(this.shown.length - 1, Math.max(0, this.chosen + step)), { address: true });
    } else if (event.key === 'Enter' && onList && this.chosen >= 0) {
      byId('browser').classList.add('reading');
      this.detail.focus();
    } else if (event.key === 'Escape' && inBrowser) this.back();
  }
}

// Opens the samples: the list as soon as its columns are there, the texts after it.
async function openBrowser(stores, makeView) {
  const status = byId('status');
  if (typeof DecompressionStream === 'undefined') {
    byId('browser').hidden = false;
    status.textContent = 'This browser is too old to unpack the samples (it lacks DecompressionStream); any from 2023 on will do.';
    return;
  }
  await Promise.all(stores.map((store) => store.open()));
  const { combined, texts, view } = makeView(stores);
  const browser = new Browser(combined, texts, view);
  const total = stores.reduce((sum, store) => sum + store.nodes.length, 0);
  let drawn = performance.now();
  stores.forEach((store) => {
    const before = store.onblock;
    store.onblock = (b, block) => {
      before(b, block);
      const ready = stores.reduce((sum, each) => sum + each.ready, 0);
      byId('loading').textContent = ready < total ? `search has seen ${Math.floor((100 * ready) / total)} %` : '';
      if (browser.query.get('q') && (ready === total || performance.now() - drawn > 500)) {
        drawn = performance.now();
        browser.apply(browser.query, { controls: false, address: false });
      }
    };
  });
  browser.start();
  for (const store of stores) await store.unpackAll();
  browser.draw();
  document.documentElement.dataset.ready = 'true';
}

// What every page has: the theme, tables that sort, the section one is in.

function themes() {
  const button = byId('theme');
  const root = document.documentElement;
  const names = ['system', 'light', 'dark'];
  const show = (name) => {
    if (name === 'system') delete root.dataset.theme;
    else root.dataset.theme = name;
    button.querySelector('span').textContent = name;
  };
  let chosen = 'system';
  try {
    chosen = names.find((name) => name === localStorage.getItem('nightjar-theme')) ?? 'system';
  } catch {
    // no storage for pages from disk: the choice lasts as long as the page
  }
  show(chosen);
  button.hidden = false;
  button.addEventListener('click', () => {
    chosen = names[(names.indexOf(chosen) + 1) % names.length];
    show(chosen);
    try {
      localStorage.setItem('nightjar-theme', chosen);
    } catch {
      // as above
    }
  });
}

function sortable(table) {
  const body = table.tBodies[0];
  const headings = [...table.tHead.rows[0].cells];
  headings.forEach((heading, column) => {
    const button = element('button', { type: 'button', class: 'sort' }, ...heading.childNodes);
    heading.replaceChildren(button);
    button.addEventListener('click', () => {
      const numeric = heading.classList.contains('num');
      const first = numeric ? 'descending' : 'ascending';
      const order = heading.getAttribute('aria-sort') === first ? (numeric ? 'ascending' : 'descending') : first;
      headings.forEach((each) => each.removeAttribute('aria-sort'));
      heading.setAttribute('aria-sort', order);
      const sign = order === 'ascending' ? 1 : -1;
      const key = (row) => row.cells[column].dataset.sort ?? row.cells[column].textContent.trim();
      // Empty cells, which failed pairs have, stay at the end in either order.
      const compare = (a, b) => {
        const [left, right] = [key(a), key(b)];
        if (left === '' || right === '') return (left === '') - (right === '');
        return sign * (numeric ? Number(left) - Number(right) : left.localeCompare(right, undefined, { numeric: true }));
      };
      body.append(...[...body.rows].sort(compare));
    });
  });
}

function currentSection() {
  const links = new Map([...document.querySelectorAll('.contents a')].map((link) => [link.hash.slice(1), link]));
  const watch = new IntersectionObserver((entries) => {
    for (const entry of entries) {
      if (entry.isIntersecting) {
        links.forEach((link) => link.removeAttribute('aria-current'));
        links.get(entry.target.id)?.setAttribute('aria-current', 'true');
      }
    }
  }, { rootMargin: '-20% 0px -70% 0px' });
  document.querySelectorAll('main > section[id]').forEach((section) => watch.observe(section));
}

// Paper has what is folded on the screen.
window.addEventListener('beforeprint', () => document.querySelectorAll('details.table').forEach((each) => { each.open = true; }));

themes();
document.querySelectorAll('table.sortable').forEach(sortable);
currentSection();

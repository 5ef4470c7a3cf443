// The index: runs are found by any of their words.

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

finder();
document.documentElement.dataset.ready = '';

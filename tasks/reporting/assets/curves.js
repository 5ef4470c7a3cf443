// A model's numbers on a benchmark, night by night: one point a night, its last run that did not fail. Where all of a
// model's runs did, as where another pair always fails, theirs are drawn, and named so.

const BOX = { left: 44, right: 348, top: 10, bottom: 186 };
const LINES = 8;

function svg(tag, properties = {}, ...children) {
  const made = document.createElementNS('http://www.w3.org/2000/svg', tag);
  for (const [name, value] of Object.entries(properties)) if (value !== null) made.setAttribute(name, value);
  made.append(...children);
  return made;
}

// Benchmark and pair → curve → night → the point of its last run; `runs` are the newest first.
function coursesOf(runs) {
  const found = new Map();
  const within = (map, key) => map.get(key) ?? map.set(key, new Map()).get(key);
  const whole = (run) => run.status === 'ok';
  for (const run of [...runs.filter(whole), ...runs.filter((run) => !whole(run))]) {
    for (const [name, pair, value, low, high, text] of run.points) {
      if (value === null) continue;
      const lines = within(found, `${run.benchmark}: ${pair}`);
      if (!whole(run) && lines.has(name)) continue;
      const nights = within(lines, whole(run) ? name : `${name} (failed)`);
      const night = run.when.slice(0, 10);
      if (!nights.has(night)) nights.set(night, { night, value, low, high, text, run });
    }
  }
  for (const [title, lines] of found) {
    for (const [name, nights] of lines) if (nights.size < 2) lines.delete(name);
    if (!lines.size) found.delete(title);
  }
  return found;
}

function courseView(title, lines) {
  const shown = [...lines].slice(0, LINES).map(([name, nights]) => [name, [...nights.values()].reverse()]);
  const nights = [...new Set(shown.flatMap(([, points]) => points.map(({ night }) => night)))].sort();
  const ends = shown.flatMap(([, points]) => points.flatMap(({ value, low, high }) => [value, low ?? value, high ?? value]));
  const axis = roundAxis(Math.min(...ends), Math.max(...ends));
  const days = nights.map((night) => Date.parse(night));
  const x = (night) => +(BOX.left + ((BOX.right - BOX.left) * (Date.parse(night) - days[0])) / (days.at(-1) - days[0])).toFixed(1);
  const y = (value) => +(BOX.bottom - ((BOX.bottom - BOX.top) * (value - axis.low)) / (axis.high - axis.low)).toFixed(1);
  const middle = nights[Math.floor(nights.length / 2)];
  return element('figure', { class: 'curves' },
    element('figcaption', {}, element('b', { text: title })),
    svg('svg', { viewBox: '0 0 360 220', role: 'img', 'aria-label': `${title} from ${nights[0]} to ${nights.at(-1)}, one line for each model; the numbers are in the table of runs` },
      ...axis.ticks.flatMap((tick) => [svg('line', { class: 'grid', x1: BOX.left, x2: BOX.right, y1: y(tick), y2: y(tick) }),
        svg('text', { x: 38, y: y(tick) + 4, 'text-anchor': 'end' }, tick.toFixed(axis.digits))]),
      svg('text', { x: BOX.left, y: 206 }, nights[0]),
      nights.length > 4 && Math.abs(x(middle) - 196) < 60 ? svg('text', { x: x(middle), y: 206, 'text-anchor': 'middle' }, middle.slice(5)) : '',
      svg('text', { x: BOX.right, y: 206, 'text-anchor': 'end' }, nights.at(-1)),
      ...shown.map(([, points], order) => courseLine(points, order, x, y))),
    element('ul', { class: 'legend' }, ...shown.map(([name], order) => element('li', { class: `s${order}` },
      svg('svg', { width: 26, height: 10, 'aria-hidden': 'true' }, svg('line', { class: 'line', x1: 0, x2: 26, y1: 5, y2: 5 }), svg('circle', { cx: 13, cy: 5, r: 3.5 })), ` ${name}`))),
    lines.size > LINES ? element('p', { class: 'dim', text: `${plural(lines.size - LINES, 'line')} left out.` }) : null);
}

function courseLine(points, order, x, y) {
  const banded = points.filter(({ low, high }) => low !== null && high !== null);
  const places = (list, value) => list.map((point) => `${x(point.night)},${y(value(point))}`);
  const band = [...places(banded, ({ high }) => high), ...places(banded, ({ low }) => low).reverse()];
  return svg('g', { class: `s${order}` },
    band.length ? svg('polygon', { class: 'band', points: band.join(' ') }) : '',
    svg('polyline', { class: 'line', points: places(points, ({ value }) => value).join(' ') }),
    ...points.map((point) => svg('circle', { cx: x(point.night), cy: y(point.value), r: points.length > 60 ? 1.5 : 3 },
      svg('title', {}, `${point.run.name}, ${point.run.when} UTC: ${point.text}`))));
}

// An axis with ticks at round numbers; shares stay within 0 and 1.
function roundAxis(least, most) {
  const air = 0.06 * (most - least) || 0.1 * Math.abs(most) || 0.5;
  const shares = least >= 0 && most <= 1;
  const low = shares ? Math.max(0, least - air) : least - air;
  const high = shares ? Math.min(1, most + air) : most + air;
  const power = 10 ** Math.floor(Math.log10((high - low) / 6));
  const step = [1, 2, 5, 10].map((digit) => digit * power).find((each) => each >= (high - low) / 6 - 1e-12);
  const ticks = [];
  for (let n = Math.ceil(low / step - 1e-9); n <= high / step + 1e-9; n++) ticks.push(n * step);
  return { low, high, ticks, digits: Math.max(0, -Math.floor(Math.log10(step) + 1e-9)) };
}

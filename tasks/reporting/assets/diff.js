// Word by word difference of two texts (Myers 1986), for texts of the length of prompts and responses.

const DIFF_EDITS = 1500; // with more edits than this the texts have nothing to do with each other
const DIFF_CHARACTERS = 400000; // of what differs on both sides: more would hold the page up for seconds
const DIFF_WORD = 200;
const AROUND = 500; // characters shown at either end of a long stretch that both sides have

const diffWords = (text) => text.match(/\s+|[\p{L}\p{N}_]+|[^\s\p{L}\p{N}_]/gu) ?? [];

// Pairs of [kind, text]: ' ' in both, '-' only in the first, '+' only in the second; null: too different to say.
function difference(first, second) {
  const [head, tail] = alikeEnds(first, second);
  const middles = [first, second].map((text) => text.slice(head, text.length - tail));
  if (middles[0].length + middles[1].length > DIFF_CHARACTERS) return null;
  const middle = shortestEdit(...middles.map(diffWords));
  if (!middle) return null;
  return [[' ', first.slice(0, head)], ...middle, [' ', first.slice(first.length - tail)]].filter(([, text]) => text);
}

// How many characters both begin with, and how many they end with: whole words, unless a word has no end.
function alikeEnds(a, b) {
  const inWord = (text, at) => at > 0 && at < text.length && /^(\s\s|[\p{L}\p{N}_]{2})$/u.test(text.slice(at - 1, at + 1));
  const most = Math.min(a.length, b.length);
  let head = 0;
  while (head < most && a[head] === b[head]) head++;
  for (let back = 0; back < DIFF_WORD && head > 0 && (inWord(a, head) || inWord(b, head) || lowHalf(a, head)); back++) head--;
  let tail = 0;
  while (tail < most - head && a[a.length - 1 - tail] === b[b.length - 1 - tail]) tail++;
  const cut = (text) => inWord(text, text.length - tail) || lowHalf(text, text.length - tail);
  for (let back = 0; back < DIFF_WORD && tail > 0 && (cut(a) || cut(b)); back++) tail--;
  return [head, tail];
}

const lowHalf = (text, at) => /[\uDC00-\uDFFF]/.test(text[at] ?? '');

function shortestEdit(a, b) {
  const most = Math.min(a.length + b.length, DIFF_EDITS);
  const furthest = new Int32Array(2 * most + 3);
  const origin = most + 1;
  const trace = [];
  for (let edits = 0; edits <= most; edits++) {
    trace.push(furthest.slice(origin - edits - 1, origin + edits + 2));
    for (let k = -edits; k <= edits; k += 2) {
      const down = k === -edits || (k !== edits && furthest[origin + k - 1] < furthest[origin + k + 1]);
      let x = down ? furthest[origin + k + 1] : furthest[origin + k - 1] + 1;
      while (x < a.length && x - k < b.length && a[x] === b[x - k]) x++;
      furthest[origin + k] = x;
      if (x >= a.length && x - k >= b.length) return walkBack(a, b, trace);
    }
  }
  return null;
}

function walkBack(a, b, trace) {
  const steps = [];
  let x = a.length;
  let y = b.length;
  for (let edits = trace.length - 1; edits >= 0; edits--) {
    const at = (k) => trace[edits][k + edits + 1];
    const k = x - y;
    const down = k === -edits || (k !== edits && at(k - 1) < at(k + 1));
    const fromX = at(down ? k + 1 : k - 1);
    const fromY = fromX - (down ? k + 1 : k - 1);
    while (x > fromX && y > fromY) {
      steps.push([' ', a[x - 1]]);
      x--;
      y--;
    }
    if (edits) steps.push(down ? ['+', b[fromY]] : ['-', a[fromX]]);
    x = fromX;
    y = fromY;
  }
  return readable(steps.reverse());
}

// Neighbours of a kind become one step; blanks between two edits belong to them, or every word would be one of its own.
function readable(steps) {
  const merged = [];
  const put = (kind, text) => {
    if (merged.at(-1)?.[0] === kind) merged.at(-1)[1] += text;
    else if (kind === '-' && merged.at(-1)?.[0] === '+' && merged.at(-2)?.[0] === '-') merged.at(-2)[1] += text;
    else merged.push([kind, text]);
  };
  steps.forEach(([kind, text], i) => {
    const between = kind === ' ' && !text.trim() && i > 0 && i + 1 < steps.length && steps[i - 1][0] !== ' ' && steps[i + 1][0] !== ' ';
    if (!between) put(kind, text);
    else {
      put('-', text);
      put('+', text);
    }
  });
  return merged;
}

// One side of a difference: what the other side does not have is marked. Of a long text what is alike is left out.
function diffText(steps, kind) {
  const own = steps.filter(([step]) => step === ' ' || step === kind);
  const mark = (step, text) => (step === ' ' ? document.createTextNode(text) : element(kind === '-' ? 'del' : 'ins', { text }));
  return folded(own.reduce((sum, [, text]) => sum + text.length, 0), (end) => {
    const pieces = [];
    let left = end;
    for (const [step, text] of own) {
      if (left <= 0) break;
      const shown = end === Infinity ? text : step === ' ' ? endsOf(text) : beginning(text, left);
      left -= shown.length;
      pieces.push(mark(step, shown));
    }
    return element('pre', { dir: 'auto', class: 'response' }, ...pieces);
  });
}

function endsOf(text) {
  if (text.length <= 3 * AROUND) return text;
  return `${text.slice(0, AROUND)}\n… ${count(text.length - 2 * AROUND)} characters alike …\n${text.slice(-AROUND)}`;
}

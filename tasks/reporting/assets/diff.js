// Word by word difference of two texts (Myers 1986), for texts of the length of prompts and responses.

const DIFF_EDITS = 1500; // with more edits than this the texts have nothing to do with each other

const diffWords = (text) => text.match(/\s+|[\p{L}\p{N}_]+|[^\s\p{L}\p{N}_]/gu) ?? [];

// Pairs of [kind, text]: ' ' in both, '-' only in the first, '+' only in the second; null: too different to say.
function difference(first, second) {
  const a = diffWords(first);
  const b = diffWords(second);
  let head = 0;
  while (head < a.length && head < b.length && a[head] === b[head]) head++;
  let tail = 0;
  while (tail < a.length - head && tail < b.length - head && a[a.length - 1 - tail] === b[b.length - 1 - tail]) tail++;
  const middle = shortestEdit(a.slice(head, a.length - tail), b.slice(head, b.length - tail));
  if (!middle) return null;
  return [[' ', a.slice(0, head).join('')], ...middle, [' ', a.slice(a.length - tail).join('')]].filter(([, text]) => text);
}

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

// One side of a difference: what the other side does not have is marked.
function diffText(steps, kind) {
  return element('pre', { dir: 'auto', class: 'response' }, ...steps.filter(([step]) => step === ' ' || step === kind)
    .map(([step, text]) => (step === ' ' ? document.createTextNode(text) : element(kind === '-' ? 'del' : 'ins', { text }))));
}

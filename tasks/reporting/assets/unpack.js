// Samples are gzip in base64, in blocks. A block is unpacked when one of its samples is opened, and all of them, one
// after another, in the pauses of the page, since search has to see every text.

async function unpackElement(node) {
  const text = atob(node.textContent);
  const bytes = new Uint8Array(text.length);
  for (let i = 0; i < text.length; i++) bytes[i] = text.charCodeAt(i);
  node.remove();
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream('gzip'));
  return new Response(stream).json();
}

function lastMessage(question) {
  const content = messages(question)?.at(-1)?.content;
  const parts = Array.isArray(content) ? content.map((part) => part.text ?? `[${part.type}]`).join(' ') : content;
  return typeof parts === 'string' ? parts : question.prompt;
}

// The beginning and the end that all texts have in common; whole words only.
function sharedEnds(first, others) {
  let [start, end] = [first.length, first.length];
  for (const other of others) {
    let at = 0;
    while (at < start && first[at] === other[at]) at++;
    start = at;
    const most = Math.min(end, other.length - start, first.length - start);
    at = 0;
    while (at < most && first[first.length - 1 - at] === other[other.length - 1 - at]) at++;
    end = at;
  }
  while (start > 0 && /\S/.test(first[start - 1])) start--;
  while (end > 0 && /\S/.test(first[first.length - end])) end--;
  return [first.slice(0, start), first.slice(first.length - end)];
}

class Store {
  // The samples of one run: `index` at once, `sample(i)` and `question(i)` when their block is there.
  constructor(name) {
    this.name = name;
    this.nodes = [...document.querySelectorAll(`script[data-name="${name}"]`)];
    this.blocks = new Array(this.nodes.length);
    this.ready = 0;
    this.questions = [];
    this.shared = ['', '']; // the beginning and the end that all questions have in common
    this.onblock = () => {};
  }

  async open() {
    this.index = await unpackElement(document.querySelector(`script[data-name="${this.name}-index"]`));
    this.length = this.index.item.length;
    this.starts = [];
    let start = 0;
    for (const size of this.index.blocks) {
      this.starts.push(start);
      start += size;
    }
    // A question is written with the first sample that asks it: where that is tells which block to unpack.
    this.askedFirst = new Map();
    this.index.question.forEach((question, row) => {
      if (!this.askedFirst.has(question)) this.askedFirst.set(question, row);
    });
    this.firstQuestions = this.starts.map((first, b) => {
      const end = first + this.index.blocks[b];
      for (let row = first; row < end; row++) {
        if (this.askedFirst.get(this.index.question[row]) === row) return this.index.question[row];
      }
      return 0;
    });
  }

  blockOf(row) {
    let low = 0;
    let high = this.starts.length - 1;
    while (low < high) {
      const middle = (low + high + 1) >> 1;
      if (this.starts[middle] <= row) low = middle;
      else high = middle - 1;
    }
    return low;
  }

  block(b) {
    this.blocks[b] ??= unpackElement(this.nodes[b]).then((block) => {
      block.questions.forEach((question, offset) => { this.questions[this.firstQuestions[b] + offset] = question; });
      this.ready += 1;
      this.onblock(b, block);
      return block;
    });
    return this.blocks[b];
  }

  async sample(row) {
    const b = this.blockOf(row);
    return (await this.block(b)).samples[row - this.starts[b]];
  }

  async question(row) {
    const number = this.index.question[row];
    if (this.questions[number] === undefined) await this.block(this.blockOf(this.askedFirst.get(number)));
    return this.questions[number];
  }

  // What tells a question from the others: its last message, without what all have in common.
  asked(row) {
    const question = this.questions[this.index.question[row]];
    if (!question) return '';
    const text = lastMessage(question);
    const [start, end] = this.shared;
    const framed = text.length > start.length + end.length && text.startsWith(start) && text.endsWith(end);
    const own = framed ? text.slice(start.length, text.length - end.length) : text;
    return own.trim().split('\n\n').at(-1);
  }

  findShared() {
    const [first, ...others] = [...new Set(this.questions.slice(0, 500).filter(Boolean).map(lastMessage))];
    if (others.length) this.shared = sharedEnds(first, others);
  }

  async unpackAll() {
    for (let b = 0; b < this.nodes.length; b++) {
      await this.block(b);
      await new Promise((resolve) => setTimeout(resolve));
    }
    this.findShared();
  }
}

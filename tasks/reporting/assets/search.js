// Full text search by plain substring, without an index: the lower-cased texts of a block stand one after another in
// one string, which a browser searches at gigabytes a second. Terms are joined by "and"; quotes hold a phrase together.

function searchTerms(query) {
  const terms = [];
  for (const [, phrase, word] of query.toLowerCase().matchAll(/"([^"]+)"?|(\S+)/g)) {
    const term = phrase ?? word;
    if (term && term !== '"') terms.push(term);
  }
  return terms;
}

function joined(texts) {
  const starts = new Uint32Array(texts.length);
  let length = 0;
  texts.forEach((text, i) => {
    starts[i] = length;
    length += text.length + 1;
  });
  return { text: texts.join('\u0000'), starts };
}

function markHits({ text, starts }, term, hit) {
  let at = text.indexOf(term);
  let entry = 0;
  while (at >= 0) {
    let high = starts.length - 1;
    while (entry < high) {
      const middle = (entry + high + 1) >> 1;
      if (starts[middle] <= at) entry = middle;
      else high = middle - 1;
    }
    hit(entry);
    entry += 1;
    if (entry >= starts.length) return;
    at = text.indexOf(term, starts[entry]);
  }
}

function sampleText(item, sample) {
  const parts = [item];
  for (const response of sample.responses) parts.push(response.text ?? '', response.reasoning ?? '', response.error ?? '', ...(response.calls ?? []), response.transcript ?? '');
  for (const predictions of Object.values(sample.filters)) {
    for (const prediction of predictions) if (prediction !== null) parts.push(asText(prediction));
  }
  if (sample.labels.length || Object.keys(sample.details).length) parts.push(JSON.stringify([sample.labels, sample.details]));
  return parts.join('\n').toLowerCase();
}

function questionText(question) {
  return [question.prompt, ...question.references.map(asText), ...question.choices].join('\n').toLowerCase();
}

class TextIndex {
  constructor(store) {
    this.store = store;
    this.blocks = [];
  }

  add(b, block) {
    const { starts, firstQuestions, index } = this.store;
    this.blocks[b] = {
      first: starts[b],
      firstQuestion: firstQuestions[b],
      samples: joined(block.samples.map((sample, i) => sampleText(index.item[starts[b] + i], sample))),
      questions: joined(block.questions.map(questionText)),
      asked: block.questions.length,
    };
  }

  // One byte a sample: 1 where all terms occur in the sample or its question, in the blocks that are unpacked.
  search(query) {
    const { length, index } = this.store;
    let found = null;
    for (const term of searchTerms(query)) {
      const hits = new Uint8Array(length);
      const asked = new Uint8Array(this.store.questions.length);
      for (const block of this.blocks) {
        if (!block) continue;
        markHits(block.samples, term, (entry) => { hits[block.first + entry] = 1; });
        if (block.asked) markHits(block.questions, term, (entry) => { asked[block.firstQuestion + entry] = 1; });
      }
      for (let row = 0; row < length; row++) {
        if (asked[index.question[row]]) hits[row] = 1;
        if (found && !found[row]) hits[row] = 0;
      }
      found = hits;
    }
    return found;
  }
}

// Shows the terms where they stand, without touching the document: a browser that can't does without.
function highlightTerms(root, terms) {
  if (!CSS.highlights) return;
  CSS.highlights.delete('search');
  const ranges = [];
  const walker = document.createTreeWalker(root, NodeFilter.SHOW_TEXT);
  while (terms.length && walker.nextNode() && ranges.length < 2000) {
    const text = walker.currentNode.data.toLowerCase();
    if (text.length !== walker.currentNode.data.length) continue; // lower case of another length: positions differ
    for (const term of terms) {
      for (let at = text.indexOf(term); at >= 0; at = text.indexOf(term, at + term.length)) {
        const range = document.createRange();
        range.setStart(walker.currentNode, at);
        range.setEnd(walker.currentNode, at + term.length);
        ranges.push(range);
      }
    }
  }
  if (ranges.length) CSS.highlights.set('search', new Highlight(...ranges));
}

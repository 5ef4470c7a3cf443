// One sample, read in full: prompt, references, each repeat's response with what the filters took from it, scores,
// and what judges said.

function textBlock(text, properties = {}) {
  return folded(text.length, (end) => element('pre', { dir: 'auto', ...properties, text: beginning(text, end) }));
}

function messages(question) {
  if (!question.chat) return null;
  try {
    const parsed = JSON.parse(question.prompt);
    const list = Array.isArray(parsed) ? parsed : parsed.messages; // with tools it is an object of both
    return Array.isArray(list) ? list : null;
  } catch {
    return null; // shortened, or not what it says it is: shown as text
  }
}

// A message's content: its text, or its parts with small pictures of the images; then the tools it calls.
function contentView(turn, pictures) {
  const parts = Array.isArray(turn.content) ? turn.content : [{ type: 'text', text: asText(turn.content ?? '') }];
  const views = parts.map((part) => {
    if (part.type === 'text') return part.text ? textBlock(part.text) : null;
    const url = part.image_url?.url ?? part.input_audio?.data ?? '';
    const picture = pictures?.[url];
    return picture ? element('img', { src: picture, alt: `image ${url}`, title: url }) : textBlock(`[${part.type} ${url}]`);
  });
  return [...views, turn.tool_calls ? textBlock(turn.tool_calls.map((call) => `${call.function.name}(${call.function.arguments})`).join('\n')) : null].filter(Boolean);
}

function promptView(question) {
  const turns = messages(question);
  const body = turns
    ? turns.map((turn) => element('div', { class: 'turn' },
      element('span', { class: 'role', text: turn.role ?? '?' }), ...contentView(turn, question.pictures)))
    : [textBlock(question.prompt)];
  return element('div', { class: 'prompt', tabindex: '0', role: 'region', 'aria-label': 'Prompt' }, ...body);
}

// The response with each filter's find marked. Finds may overlap: the text is cut at every end of every one.
function markedText(text, finds) {
  return folded(text.length, (end) => marked(beginning(text, end), finds));
}

function marked(text, finds) {
  const ends = [...new Set([0, text.length, ...finds.flatMap(({ span }) => span)])].filter((end) => end <= text.length).sort((a, b) => a - b);
  const pieces = [];
  for (let i = 0; i + 1 < ends.length; i++) {
    const piece = text.slice(ends[i], ends[i + 1]);
    const by = finds.filter(({ span }) => span[0] <= ends[i] && span[1] >= ends[i + 1]);
    if (!by.length) pieces.push(document.createTextNode(piece));
    else {
      const names = by.map(({ name }) => name).join(', ');
      pieces.push(element('mark', { class: `f${by[0].order % 6}${by[1] ? ` u${by[1].order % 6}` : ''}`, title: `taken by ${names}`, text: piece }));
    }
  }
  return element('pre', { dir: 'auto', class: 'response' }, ...pieces);
}

function responseMeta(response) {
  const parts = [];
  if (response.finish) parts.push(response.finish === 'length' ? 'cut off at the token limit' : `finished: ${response.finish}`);
  if (response.completion_tokens !== undefined) parts.push(plural(response.completion_tokens, 'token'));
  if (response.seconds !== undefined) parts.push(`${response.seconds.toFixed(2)} s`);
  return parts.join(' · ');
}

function choiceTable(question, response) {
  const best = response.lls.indexOf(Math.max(...response.lls));
  const rows = response.lls.map((ll, i) => element('tr', { class: i === best ? 'best' : null },
    element('td', { text: question.gold.includes(i) ? '✓ right' : '' }),
    element('td', {}, textBlock(question.choices[i] ?? `continuation ${i + 1}`)),
    element('td', { class: 'num', text: score(ll) }),
    element('td', { text: i === best ? 'chosen' : '' })));
  return element('table', { class: 'choices' },
    element('thead', {}, element('tr', {}, ...['', 'Choice', 'Log-likelihood', ''].map((text) => element('th', { scope: 'col', text })))),
    element('tbody', {}, ...rows));
}

// A prediction of log-likelihoods is read as the choice they favour.
function chosenText(question, response, prediction) {
  if (!response?.lls || !Array.isArray(prediction) || !question.choices.length) return asText(prediction);
  return question.choices[prediction.indexOf(Math.max(...prediction))] ?? asText(prediction);
}

function filterRows(question, sample, repeat, filters, shares) {
  return filters.map((name, order) => {
    const predictions = sample.filters[name];
    if (!predictions || repeat >= predictions.length) return null;
    const prediction = predictions[repeat];
    const shown = chosenText(question, sample.responses[repeat], prediction);
    const scores = Object.entries(sample.scores).filter(([pair]) => filterOf(pair) === name);
    return element('tr', {},
      element('th', { scope: 'row' }, element('span', { class: `swatch f${order % 6}`, 'aria-hidden': 'true' }), name),
      element('td', {}, sample.spans[name][repeat] === 'whole'
        ? element('i', { text: 'the whole response' })
        : prediction === null
        ? element('i', { text: 'found nothing' })
        : element('code', { dir: 'auto', text: shown.length > 400 ? `${shown.slice(0, 400)}…` : shown })),
      element('td', {}, ...scores.map(([pair, values]) => scoreChip(sample, pair, values[repeat], repeat, shares))));
  }).filter(Boolean);
}

// What tells pairs apart: their metrics, their filters, or both; nothing has to where there is one.
function shortNames(pairs) {
  if (pairs.length < 2) return new Map(pairs.map((pair) => [pair, '']));
  const different = (part) => new Set(pairs.map(part)).size === pairs.length;
  return new Map(pairs.map((pair) => [pair, ` ${different(metricOf) ? metricOf(pair) : different(filterOf) ? filterOf(pair) : pair}`]));
}

// Chips of the first pairs; the others are counted, and named where one points.
function namedChips(pairs, chip, name = (pair) => pair, shown = 2) {
  const more = pairs.slice(shown);
  return [...pairs.slice(0, shown).map(chip),
    more.length ? element('span', { class: 'chip', title: more.map(name).join(', '), text: `+${more.length}` }) : null].filter(Boolean);
}

const filterOf = (pair) => pair.slice(pair.indexOf(',') + 1);
const metricOf = (pair) => pair.slice(0, pair.indexOf(','));

// Right and wrong are said of shares only (`shares` holds their pairs); other scores are just numbers.
function scoreChip(sample, pair, value, repeat, shares) {
  const reason = sample.reasons[pair]?.[repeat];
  const unscored = value === null || value === undefined;
  const kind = unscored ? 'unscored' : !shares.has(pair) ? '' : value === 1 ? 'full' : value === 0 ? 'none' : 'part';
  const sign = { full: ' ✓', none: ' ✗' }[kind] ?? '';
  return element('span', { class: `chip ${kind}`, title: reason ?? null },
    `${metricOf(pair)} `, element('b', { text: `${score(value)}${sign}` }), reason ? `: ${reason}` : '');
}

// What a judge or a method left, as names and values: JSON within, and JSON in a text, is taken apart.
function words(details, depth = 0) {
  return element('dl', { class: 'words' }, ...Object.entries(details).map(([name, value]) => {
    const inner = parsed(value);
    const nested = inner !== null && typeof inner === 'object' && Object.keys(inner).length && depth < 6;
    return element('div', { class: nested ? 'nested' : null },
      element('dt', { text: Array.isArray(details) ? Number(name) + 1 : name }),
      element('dd', {}, nested ? words(inner, depth + 1) : textBlock(asText(inner))));
  }));
}

function parsed(value) {
  if (typeof value !== 'string' || value.length > LONG || !/^\s*[[{]/.test(value)) return value;
  try {
    return JSON.parse(value);
  } catch {
    return value; // it only begins like JSON
  }
}

function judgements(sample, repeat) {
  const labels = sample.labels.filter((label) => label.index === repeat).map((label) => element('div', { class: 'judgement' },
    element('p', {}, element('span', { class: `chip ${label.passed === true ? 'full' : label.passed === false ? 'none' : 'unscored'}` },
      `${label.label} `, element('b', { text: label.passed === true ? 'passed ✓' : label.passed === false ? 'did not pass ✗' : label.status === 'ok' ? score(label.score) : 'unscored' }),
      label.passed !== null && label.score !== null ? ` ${score(label.score)}` : '')),
    Object.keys(label.details).length ? element('details', {}, element('summary', { text: 'Details' }), words(label.details)) : null));
  const details = Object.entries(sample.details)
    .filter(([, values]) => values[repeat] && Object.keys(values[repeat]).length)
    .map(([pair, values]) => element('details', { class: 'judgement' },
      element('summary', { text: `What ${pair} says` }), words(values[repeat])));
  return [...labels, ...details];
}

function responseView(question, sample, repeat, shares, show = markedText) {
  const filters = Object.keys(sample.filters);
  const response = sample.responses[repeat];
  const many = sample.responses.length > 1;
  const finds = filters
    .map((name, order) => ({ name, order, span: sample.spans[name]?.[repeat] }))
    .filter(({ span }) => Array.isArray(span));
  const rows = filterRows(question, sample, repeat, filters, shares);
  let body;
  if (response.status !== 'ok') body = element('div', { class: 'note error' }, element('b', { text: response.status }), ` ${response.error ?? 'no reason was recorded'}`);
  else if (response.text === undefined && response.lls) body = choiceTable(question, response);
  else if (!response.text && response.calls) body = null;
  else if (!response.text) body = element('p', { class: 'dim', text: 'The response is empty.' });
  else body = show(response.text, finds);
  return element('section', { class: `repeat${response.finish === 'length' ? ' cut' : ''}` },
    element('h4', {}, many ? `Response ${repeat + 1} of ${sample.responses.length} ` : 'Response ', element('span', { class: 'dim', text: responseMeta(response) })),
    response.reasoning ? element('details', {}, element('summary', { text: `Reasoning (${response.reasoning_tokens === undefined ? plural(response.reasoning.length, 'character') : plural(response.reasoning_tokens, 'token')})` }), textBlock(response.reasoning)) : null,
    response.transcript ? element('details', {}, element('summary', { text: 'Conversation' }), promptView({ chat: true, prompt: response.transcript, pictures: question.pictures })) : null,
    body,
    response.calls ? element('div', { class: 'calls' }, element('b', { text: response.calls.length > 1 ? 'Calls' : 'Call' }), textBlock(response.calls.join('\n'))) : null,
    rows.length ? element('table', { class: 'predictions' },
      element('thead', { class: 'offscreen' }, element('tr', {}, ...['Filter', 'Prediction', 'Scores'].map((text) => element('th', { scope: 'col', text })))),
      element('tbody', {}, ...rows)) : null,
    ...judgements(sample, repeat));
}

function sampleView(question, sample, shares) {
  const references = question.references.map((reference) => textBlock(asText(reference), { class: 'reference' }));
  const orphans = Object.entries(sample.scores).filter(([pair]) => !(filterOf(pair) in sample.filters));
  return [
    element('h4', { text: 'Prompt' }), promptView(question),
    references.length ? element('h4', { text: references.length > 1 ? 'References (any of them is right)' : 'Reference' }) : null, ...references,
    ...sample.responses.map((_, repeat) => responseView(question, sample, repeat, shares)),
    orphans.length ? element('p', {}, ...orphans.flatMap(([pair, values]) => values.map((value, repeat) => scoreChip(sample, pair, value, repeat, shares)))) : null,
  ].filter(Boolean);
}

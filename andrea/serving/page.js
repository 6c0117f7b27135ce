// The page that goes on with a text: asks the server that it came from, and shows what streams back.
"use strict";

const at = (id) => document.getElementById(id);
const text = at("text");
let model = null;
let running = null; // what stops the text that is being written
let before = null; // the text as it was before the model wrote on

function say(problem) {
  at("problem").textContent = problem;
  at("problem").hidden = !problem;
}

function show() {
  const busy = running !== null;
  at("write").hidden = busy;
  at("stop").hidden = !busy;
  at("write").disabled = model === null;
  at("again").disabled = at("undo").disabled = busy || before === null;
  text.readOnly = busy;
}

async function problemOf(answer) {
  try {
    return (await answer.json()).error.message;
  } catch {
    return `the server answered ${answer.status}`;
  }
}

async function look() {
  try {
    const answer = await fetch("v1/models");
    if (!answer.ok) throw new Error(await problemOf(answer));
    model = (await answer.json()).data[0];
  } catch (error) {
    at("facts").textContent = "";
    say(`No model was found: ${error.message}`);
    return;
  }
  document.title = `${model.id} – Andrea`;
  at("name").textContent = model.id;
  at("facts").textContent = `${model.tokenizer}; it sees the last ${model.context_length.toLocaleString("en")} tokens of a text.`;
  at("tokens").max = model.max_tokens;
  at("tokens").value = Math.min(200, model.max_tokens);
  at("chat").textContent = model.chat;
  at("example").textContent =
    `from openai import OpenAI\n\n` +
    `client = OpenAI(base_url=${JSON.stringify(new URL("v1", location.href).href)}, api_key="none")\n` +
    `answer = client.completions.create(model=${JSON.stringify(model.id)}, prompt="Once upon", max_tokens=100)\n` +
    `print(answer.choices[0].text)`;
  show();
}

function wish(prompt) {
  const body = {
    model: model.id,
    prompt,
    stream: true,
    max_tokens: at("tokens").valueAsNumber,
    temperature: at("temperature").valueAsNumber,
    top_p: at("top_p").valueAsNumber,
    truncate_prompt_tokens: -1,
    stream_options: { include_usage: true },
  };
  if (at("seed").value) body.seed = at("seed").valueAsNumber;
  if (at("stops").value) body.stop = [at("stops").value.replaceAll("\\n", "\n")];
  return body;
}

// Events of a stream: the JSON after each "data: ", until it is [DONE].
async function* eventsOf(answer) {
  const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { done, value } = await reader.read();
    if (done) throw new Error("the server broke off");
    rest += value;
    const parts = rest.split("\n\n");
    rest = parts.pop();
    for (const part of parts) {
      const data = part.replace(/^data: /, "");
      if (data === "[DONE]") return;
      const event = JSON.parse(data);
      if (event.error) throw new Error(event.error.message);
      yield event;
    }
  }
}

// What has come is shown a few times a second: a small model writes thousands of tokens in one.
const PAUSE = 50; // milliseconds
let waiting = "";
let timer = null;

function append(piece) {
  waiting += piece;
  timer ??= setTimeout(flush, PAUSE);
}

function flush() {
  clearTimeout(timer);
  timer = null;
  if (!waiting) return;
  // Someone who scrolled up to read is left there.
  const follows = text.scrollHeight - text.scrollTop - text.clientHeight < 40;
  text.value += waiting;
  waiting = "";
  if (follows) text.scrollTop = text.scrollHeight;
}

async function write(prompt) {
  say("");
  before = text.value = prompt;
  running = new AbortController();
  show();
  at("state").textContent = "writing…";
  const start = performance.now();
  let told = "";
  try {
    const answer = await fetch("v1/completions", {
      method: "POST",
      headers: { "Content-Type": "application/json" },
      body: JSON.stringify(wish(prompt)),
      signal: running.signal,
    });
    if (!answer.ok) throw new Error(await problemOf(answer));
    for await (const event of eventsOf(answer)) {
      for (const choice of event.choices) append(choice.text);
      if (event.usage) {
        const seconds = (performance.now() - start) / 1000;
        told = `${event.usage.completion_tokens} tokens in ${seconds.toFixed(1)} s`;
      }
    }
  } catch (error) {
    if (error.name === "AbortError") told = "stopped";
    else say(error.message);
  } finally {
    flush();
    running = null;
    at("state").textContent = told;
    show();
    text.focus();
  }
}

at("form").addEventListener("submit", (event) => {
  event.preventDefault();
  if (model !== null && running === null) write(text.value);
});
at("stop").addEventListener("click", () => running?.abort());
at("again").addEventListener("click", () => {
  if (at("form").reportValidity()) write(before);
});
at("undo").addEventListener("click", () => {
  text.value = before;
  before = null;
  at("state").textContent = "";
  show();
});
text.addEventListener("keydown", (event) => {
  if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) at("form").requestSubmit();
});

show();
look();

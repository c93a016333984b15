// The labelling page. It shows what the server says and sends back keys. Everything from the data goes onto the screen
// by textContent, never as markup; the server's policy (Trusted Types) forbids anything else.
"use strict";

const SVG = "http://www.w3.org/2000/svg";
const at = (id) => document.getElementById(id);
const STORED = "klimb-label-token";
let token = null;
let state = null;
let busy = false; // an answer is on its way: further keys wait for the next item
let ended = false;

// -- talking to the server ------------------------------------------------------------------------------------------

async function call(path, body) {
  const request = { headers: { "X-Klimb-Token": token ?? "" }, cache: "no-store" };
  if (body !== undefined) {
    request.method = "POST";
    request.headers["Content-Type"] = "application/json";
    request.body = JSON.stringify(body);
  }
  const reply = await fetch(path, request);
  const found = (reply.headers.get("Content-Type") ?? "").startsWith("application/json")
    ? await reply.json() : await reply.text();
  if (!reply.ok) throw Object.assign(new Error(found.error ?? String(found)), { status: reply.status, state: found.state });
  return found;
}

async function enter() {
  const given = new URLSearchParams(location.hash.slice(1));
  if (location.hash) history.replaceState(null, "", location.pathname); // neither in the address nor in the history
  if (given.has("token")) sessionStorage.setItem(STORED, given.get("token"));
  if (given.has("code")) {
    try {
      sessionStorage.setItem(STORED, (await call("api/enter", { code: given.get("code") })).token);
    } catch (error) {
      return locked();
    }
  }
  token = sessionStorage.getItem(STORED);
  if (!token) return locked();
  listen();
}

function locked() {
  trouble("This address does not open the page. Use the one that klimb label printed in the terminal.");
  stop();
}

async function listen() {
  let quiet = 0; // failures in a row
  while (!ended) {
    try {
      const news = await call(state === null ? "api/state" : `api/state?seen=${state.version}`);
      if (quiet > 0) trouble("");
      quiet = 0;
      if (news.closing) return farewell();
      if (state === null && news.blind && !hiding) blind();
      if (state === null || news.version > state.version) show(news);
    } catch (error) {
      if (error.status === 403) return locked();
      quiet += 1;
      if (quiet > 2) trouble("klimb label does not answer. If it was stopped, run it again: every label is saved.");
      await new Promise((resume) => setTimeout(resume, Math.min(500 * quiet, 5000)));
    }
  }
}

async function act(path, body, words) {
  if (busy || ended || state === null) return;
  busy = true;
  try {
    show(await call(path, { turn: state.turn, ...body }));
    say(words);
  } catch (error) {
    if (error.state) show(error.state);
    if (error.status === 403) locked();
    else trouble(error.message || "klimb label does not answer.", error.status === 409 ? 4000 : 0);
  } finally {
    busy = false;
    if (!ended) enable();
  }
}

const answer = (label) => {
  if (state?.item && label < state.labels.length) {
    act("api/answer", { row: state.item.row, label }, `${state.labels[label]}: saved.`);
  }
};
const skip = () => { if (state?.item) act("api/skip", { row: state.item.row }, "Skipped."); };
const undo = () => { if (state?.can_undo) act("api/undo", {}, "Taken back."); };

// -- keys -----------------------------------------------------------------------------------------------------------

document.addEventListener("keydown", (event) => {
  if (event.repeat || event.ctrlKey || event.metaKey || event.altKey || state === null) return;
  const label = state.keys.indexOf(event.key.toLowerCase());
  if (label >= 0) answer(label);
  else if (event.key === "s") skip();
  else if (event.key === "u") undo();
  else if (event.key === "h") blind();
  else return;
  event.preventDefault();
});
at("skip").addEventListener("click", skip);
at("undo").addEventListener("click", undo);
at("blind").addEventListener("click", blind);

let hiding = false;
function blind() {
  hiding = !hiding;
  at("blind").setAttribute("aria-pressed", String(hiding));
  at("blind").querySelector("span").textContent = hiding ? "show the prediction" : "hide the prediction";
  if (state) show(state, true);
}

at("more").addEventListener("click", async () => {
  try {
    const row = state.item.row;
    const whole = await call(`api/text?row=${row}`);
    if (state.item?.row === row) pieces(at("text"), whole.segments);
    at("more").hidden = true;
  } catch (error) {
    trouble(error.message, 4000);
  }
});

at("download").addEventListener("click", async () => {
  try {
    const file = new Blob([await call("api/labels.csv")], { type: "text/csv" });
    const link = document.createElement("a");
    link.href = URL.createObjectURL(file);
    link.download = "labels.csv";
    link.click();
    setTimeout(() => URL.revokeObjectURL(link.href), 1000);
  } catch (error) {
    trouble(error.message, 4000);
  }
});

// -- showing --------------------------------------------------------------------------------------------------------

function element(name, words, kind) {
  const made = document.createElement(name);
  if (words !== undefined) made.textContent = words;
  if (kind) made.className = kind;
  return made;
}

const percent = (value) => (value > 0 && value < 0.005 ? "<1%" : value < 1 && value > 0.995 ? ">99%" : `${Math.round(100 * value)}%`);
const count = (value) => value.toLocaleString("en");

function say(words) { at("said").textContent = words; }

function trouble(words, passing) {
  at("trouble").textContent = words;
  at("trouble").hidden = !words;
  if (passing) setTimeout(() => { if (at("trouble").textContent === words) trouble(""); }, passing);
}

function show(news, again = false) {
  const fresh = !state || state.item?.row !== news.item?.row || state.turn !== news.turn;
  const pushed = JSON.stringify(state?.item) !== JSON.stringify(news.item);
  if (news.trouble !== (state?.trouble ?? "")) trouble(news.trouble);
  state = news;
  at("source").textContent = news.source;
  document.title = `${news.source} - klimb label`;
  const labelled = news.counts.reduce((sum, one) => sum + one, 0);
  at("counts").textContent = `${count(labelled)} labelled, ${count(news.skipped)} skipped, ${count(news.left)} left`;
  buttons();
  item(news.item, fresh || pushed || again);
  if (fresh && news.item) { at("text").scrollTop = 0; }
  chances();
  at("advice").textContent = news.advice.text;
  at("verdict").className = `verdict ${news.advice.kind}`;
  curve(news.figures);
  tiles(news);
  past(news);
  enable();
}

function enable() {
  const open = !ended && !!state?.item;
  for (const button of at("labels").children) button.disabled = !open;
  at("skip").disabled = !open;
  at("undo").disabled = ended || !state?.can_undo;
}

function buttons() {
  if (at("labels").children.length === state.labels.length) return;
  at("labels").replaceChildren(...state.labels.map((name, label) => {
    const made = element("button");
    made.type = "button";
    made.append(element("kbd", state.keys[label]), " ", name);
    made.setAttribute("aria-keyshortcuts", state.keys[label]);
    made.addEventListener("click", () => answer(label));
    return made;
  }));
}

function item(one, changed) {
  const waiting = one === null;
  at("wait").hidden = !waiting;
  at("text").hidden = waiting || one.segments.length === 0;
  at("columns").hidden = waiting || one.columns.length === 0;
  at("why").hidden = waiting || one.why !== "check";
  at("why").textContent = "random check";
  at("why").title = "Drawn at random, not by the model: these show how good it really is.";
  if (waiting) {
    at("wait").textContent = state.waiting ? "Choosing the next item…" : "Every item is labelled or skipped.";
    at("where").textContent = "";
    at("more").hidden = true;
    at("legend").hidden = true;
    at("text").replaceChildren();
    return;
  }
  if (!changed) return;
  at("where").textContent = one.id === String(one.row) ? `row ${one.id}` : `${one.id} (row ${one.row})`;
  pieces(at("text"), one.segments);
  at("more").hidden = !one.more;
  at("columns").tBodies[0].replaceChildren(...one.columns.map(([name, value, push]) => {
    const line = element("tr");
    const head = element("th", name);
    head.scope = "row";
    const cell = element("td");
    cell.append(push && !hiding ? marked(value, push) : value);
    line.append(head, cell);
    return line;
  }));
  legend();
}

const towards = () => (state.labels.length === 2 ? 0 : state.item.chances.reduce(
  (best, chance, label, all) => (chance[0] > all[best][0] ? label : best), 0));

function marked(words, push) {
  const made = element("mark", words, `${push > 0 ? "for" : "not"}${Math.abs(push)}`);
  const name = state.labels[towards()];
  made.title = push > 0 ? `supports ${name}` : state.labels.length === 2 ? `supports ${state.labels[1]}` : `against ${name}`;
  return made;
}

function pieces(place, segments) {
  place.replaceChildren(...segments.map(([words, push]) => (push && !hiding ? marked(words, push) : words)));
}

function legend() {
  const any = [...state.item.segments.map((one) => one[1]), ...state.item.columns.map((one) => one[2])].some((push) => push);
  at("legend").hidden = !any || hiding;
  if (!any) return;
  const name = state.labels[towards()];
  const other = state.labels.length === 2 ? `supports ${state.labels[1]}` : `against ${name}`;
  at("legend").replaceChildren(element("mark", `supports ${name}`, "for2"), element("mark", other, "not2"));
}

function chances() {
  at("prediction").hidden = !state.item;
  if (!state.item) return;
  if (hiding) return at("chances").replaceChildren(element("p", "Hidden. Press h to see it.", "soft"));
  const shown = state.labels.length === 2 ? [0] : state.labels.map((_, label) => label);
  at("chances").replaceChildren(...shown.flatMap((label) => {
    const [mean, low, high] = state.item.chances[label];
    const line = element("p", undefined, "chance");
    line.append(element("span", state.labels[label]), element("b", `${percent(mean)} (${percent(low)} to ${percent(high)})`));
    return [line, strip(mean, low, high, state.labels[label])];
  }));
  at("chances").append(element("p", "Probability and 90% interval, before your answer.", "soft small"));
}

// -- drawing --------------------------------------------------------------------------------------------------------

function draw(name, attributes, words) {
  const made = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  if (words !== undefined) made.textContent = words;
  return made;
}

function strip(mean, low, high, name) {
  const x = (value) => 8 + 284 * value;
  const svg = draw("svg", { class: "chart", viewBox: "0 0 300 18", role: "img",
    "aria-label": `${name}: ${percent(mean)}, between ${percent(low)} and ${percent(high)}` });
  svg.append(draw("line", { class: "bed", x1: 8, x2: 292, y1: 9, y2: 9 }),
    draw("line", { class: "whisker", x1: x(low), x2: x(high), y1: 9, y2: 9 }),
    draw("line", { class: "ref", x1: 150, x2: 150, y1: 2, y2: 16 }),
    draw("circle", { class: "dot", cx: x(mean), cy: 9, r: 6 }));
  return svg;
}

function ticks(high, most) {
  const rough = high / most;
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].map((one) => one * power).find((one) => one >= rough) ?? rough;
  const found = [];
  for (let value = 0; value <= high * 1.0001; value += step) found.push(value);
  return found;
}

function curve(figures) {
  const model = figures.curve, checks = figures.checks;
  const note = at("curve-note");
  if (model.length < 2) {
    at("curve").replaceChildren();
    note.textContent = "It starts with the first labels.";
    return;
  }
  const most = Math.max(model.at(-1)[0], checks.at(-1)?.[0] ?? 0, 5);
  const top = Math.min(1, 1.15 * Math.max(0.1, ...model.map((one) => one[1]), ...checks.slice(2).map((one) => one[1])));
  const wide = 320, high = 190, left = 36, right = 310, bottom = 160, head = 12;
  const x = (value) => left + (right - left) * value / most;
  const y = (value) => bottom - (bottom - head) * Math.min(value, top) / top;
  const svg = draw("svg", { class: "chart", viewBox: `0 0 ${wide} ${high}`, role: "img",
    "aria-label": `Expected error over the labels: now ${percent(model.at(-1)[1])} after ${model.at(-1)[0]} labels` });
  for (const value of ticks(top, 4)) {
    svg.append(draw("line", { class: "grid", x1: left, x2: right, y1: y(value), y2: y(value) }),
      draw("text", { class: "soft", x: left - 6, y: y(value) + 4, "text-anchor": "end" }, percent(value)));
  }
  for (const value of ticks(most, 5)) {
    if (Number.isInteger(value)) svg.append(draw("text", { class: "soft", x: x(value), y: bottom + 15, "text-anchor": "middle" }, value));
  }
  svg.append(draw("line", { class: "axis", x1: left, x2: right, y1: bottom, y2: bottom }),
    draw("text", { class: "name", x: (left + right) / 2, y: bottom + 29, "text-anchor": "middle" }, "labels"));
  const line = (points, kind) => draw("polyline", { class: kind, points: points.map(([a, b]) => `${x(a).toFixed(1)},${y(b).toFixed(1)}`).join(" ") });
  if (checks.length > 2) {
    const band = [...checks.map((one) => [one[0], one[3]]), ...checks.map((one) => [one[0], one[2]]).reverse()];
    svg.append(draw("polygon", { class: "checkband", points: band.map(([a, b]) => `${x(a).toFixed(1)},${y(b).toFixed(1)}`).join(" ") }),
      line(checks.map((one) => [one[0], one[1]]), "check"));
  }
  svg.append(line(model.map((one) => [one[0], one[1]]), "line"));
  at("curve").replaceChildren(svg);
  note.replaceChildren(element("span", "Solid: the share of unlabelled items the model expects to get wrong."),
    checks.length > 2 ? " Dashed, with a 90% band: the share of the last random checks it did get wrong." : "");
}

function tiles(news) {
  const figures = news.figures;
  const now = figures.curve.at(-1);
  const [right, total, low, high] = figures.foreseen;
  const [hits, asked] = figures.questions;
  const rows = [
    ["Expected error", now ? percent(now[1]) : "-", "of unlabelled items"],
    ["Uncertainty", now ? `${now[2].toFixed(2)} bits` : "-", "per unlabelled item"],
    ["Checks predicted", total ? `${right} of ${total}` : "-", total ? `random sample: ${percent(low)} to ${percent(high)}` : "a random sample"],
    ["Questions predicted", asked ? `${hits} of ${asked}` : "-", "the uncertain items"],
    ...news.labels.map((name, label) => [name, count(news.counts[label]), "labelled"]),
  ];
  at("tiles").replaceChildren(...rows.map(([name, value, remark]) => {
    const box = element("div"), said = element("dd");
    said.append(element("b", value), element("span", remark));
    box.append(element("dt", name), said);
    return box;
  }));
}

function past(news) {
  at("history").replaceChildren(...news.history.map((one) => {
    const line = element("li");
    line.append(element("b", one.label === null ? "skipped" : news.labels[one.label]), element("span", one.text));
    line.title = one.text;
    return line;
  }));
  at("saved").textContent = ` Saved in ${news.journal}.`;
}

function stop() {
  ended = true;
  enable();
}

function farewell() {
  stop();
  trouble("klimb label has ended; every label is saved. Run it again to resume.");
}

enter();

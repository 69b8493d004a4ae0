// Keeps an open page up to date, and shows times in the reader's zone. Without it, pages can be read
// and their forms work; only a reload shows what is new.

const EVERY = 5000; // milliseconds between two looks without a stream
const REST = 60000; // milliseconds before a stream is tried again that the server refused
const two = (number) => String(number).padStart(2, "0");

function local(at) {
  const day = `${at.getFullYear()}-${two(at.getMonth() + 1)}-${two(at.getDate())}`;
  return `${day} ${two(at.getHours())}:${two(at.getMinutes())}:${two(at.getSeconds())}`;
}

function age(at) {
  const seconds = Math.round((Date.now() - at.getTime()) / 1000);
  const left = Math.abs(seconds);
  if (left < 1) return "now";
  const units = [[86400, "d"], [3600, "h"], [60, "min"], [1, "s"]];
  const first = units.findIndex(([size]) => left >= size);
  const [size, unit] = units[first];
  let text = `${Math.floor(left / size)} ${unit}`;
  const next = units[first + 1];
  const rest = next ? Math.floor((left % size) / next[0]) : 0;
  if (rest) text += ` ${rest} ${next[1]}`;
  return seconds < 0 ? `in ${text}` : `${text} ago`;
}

function showTimes(within = document) {
  for (const element of within.querySelectorAll("time[data-as]")) {
    const at = new Date(element.dateTime);
    const text = element.dataset.as === "age" ? age(at) : local(at);
    if (element.textContent !== text) element.textContent = text;
  }
}

// True if a person works in the region: an open dialog, a field with the focus, marked text.
function busy(region) {
  const focus = document.activeElement;
  const marked = getSelection();
  return region.querySelector("details.ask[open]") !== null
    || (region.contains(focus) && focus.matches("input, select, textarea"))
    || (marked && !marked.isCollapsed && region.contains(marked.anchorNode));
}

function place(region, fresh) {
  const focus = document.activeElement;
  const within = region.contains(focus);
  const all = (root) => [...root.querySelectorAll("a, button, summary, [tabindex]")];
  const at = within ? all(region).indexOf(focus) : -1;
  const scrolled = [...region.querySelectorAll(".scroll")].map((one) => one.scrollLeft);
  showTimes(fresh);
  region.replaceWith(fresh);
  fresh.querySelectorAll(".scroll").forEach((one, index) => { one.scrollLeft = scrolled[index] ?? 0; });
  if (at >= 0) (all(fresh)[at] ?? fresh).focus({preventScroll: true});
}

let looking = false;

async function look() {
  const regions = [...document.querySelectorAll("[data-live]")];
  // A form that was refused is shown at an address that has no page.
  if (looking || document.hidden || !regions.length || document.querySelector("main[data-still]")) return;
  looking = true;
  try {
    const answer = await fetch(location.href, {headers: {Accept: "text/html", "X-Jobqueue-Live": "1"}});
    if (answer.redirected) { location.reload(); return; } // the session has expired
    if (!answer.ok) { tell(`not up to date: ${answer.status}`); return; }
    const page = new DOMParser().parseFromString(await answer.text(), "text/html");
    for (const region of regions) {
      const fresh = page.getElementById(region.id);
      if (fresh && !busy(region) && fresh.innerHTML !== region.dataset.was) {
        fresh.dataset.was = fresh.innerHTML;
        place(region, fresh);
      }
    }
    tell("");
  } catch {
    tell("not up to date: the server does not answer");
  } finally {
    looking = false;
  }
}

// One stream says when there is news. A hidden page has none, and a page whose stream is refused or
// broken looks every few seconds.
let stream = null;
let rests = 0;

function follow() {
  if (stream || document.hidden || Date.now() < rests || !document.querySelector("[data-live]")) return;
  stream = new EventSource(new URL("../live", import.meta.url));
  stream.addEventListener("look", look);
  stream.addEventListener("over", () => location.reload());
  stream.addEventListener("error", () => {
    if (stream && stream.readyState === EventSource.CLOSED) { rests = Date.now() + REST; leave(); }
  });
}

function leave() {
  if (stream) stream.close();
  stream = null;
}

function tell(text) {
  const place = document.getElementById("live");
  if (place && place.textContent !== text) place.textContent = text;
}

// Does a change of many jobs part by part, as long as its page is open.
async function goOn(form) {
  while (form) {
    const answer = await fetch(form.action, {method: "POST", body: new URLSearchParams(new FormData(form))});
    const page = new DOMParser().parseFromString(await answer.text(), "text/html");
    const fresh = page.getElementById("bulk") ?? page.querySelector("main .panel");
    const shown = document.getElementById("bulk");
    if (!fresh || !shown) { location.reload(); return; }
    for (const name of ["href", "action"]) { // they are relative to the answer's address
      for (const one of fresh.querySelectorAll(`[${name}]`)) {
        one.setAttribute(name, new URL(one.getAttribute(name), answer.url));
      }
    }
    shown.replaceWith(fresh);
    form = fresh.querySelector("form[data-go-on=now]");
    if (!answer.ok) return;
  }
}
document.addEventListener("submit", (event) => {
  if (event.target.matches("form[data-go-on]")) {
    event.preventDefault();
    event.target.querySelector("button").disabled = true;
    goOn(event.target).catch(() => tell("the server does not answer; open the page again to go on"));
  }
});

const address = new URL(location.href);
if (address.searchParams.has("did")) { // a reload must not show the message again
  address.searchParams.delete("did");
  history.replaceState(null, "", address);
}
// On a phone the row of pages is wider than the screen.
document.querySelector("nav [aria-current]")?.scrollIntoView({block: "nearest", inline: "center"});
showTimes();
setInterval(showTimes, 1000);
follow();
setInterval(() => { if (!stream || stream.readyState !== EventSource.OPEN) { follow(); look(); } }, EVERY);
addEventListener("pagehide", leave);
addEventListener("pageshow", follow);
document.addEventListener("visibilitychange", () => {
  if (document.hidden) { leave(); return; }
  showTimes();
  look();
  follow();
});
document.addEventListener("keydown", (event) => {
  const open = document.querySelector("details.ask[open]");
  if (event.key === "Escape" && open) { open.open = false; open.querySelector("summary").focus(); }
});
document.addEventListener("click", (event) => {
  for (const open of document.querySelectorAll("details.ask[open]")) if (!open.contains(event.target)) open.open = false;
});

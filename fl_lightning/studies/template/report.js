"use strict";
// Draws the charts of a report: lines with bands, that can be hovered over and filtered. The data are in the element "data".
const COLOURS = ["#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#999933", "#8c6bb1"];
const DASHES = ["", "7 3", "2 3", "8 3 2 3", "12 3"];
const data = JSON.parse(document.getElementById("data").textContent);
const create = (name, attributes = {}, text = "") => {
  const element = document.createElementNS("http://www.w3.org/2000/svg", name);
  for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
  element.textContent = text;
  return element;
};
const shown = value => Math.abs(value) >= 1e5 || (value !== 0 && Math.abs(value) < 1e-3) ? value.toExponential(2) : String(+value.toPrecision(4));
const steps = (low, high) => {
  const raw = (high - low) / 5, power = 10 ** Math.floor(Math.log10(raw));
  const step = [1, 2, 5, 10].map(k => k * power).find(k => k >= raw);
  const found = [];
  for (let x = Math.ceil(low / step) * step; x <= high + step * 1e-6; x += step) found.push(x);
  return found;
};

function chart(figure) {
  const select = figure.querySelector("select"), svg = figure.querySelector("svg");
  const legend = figure.querySelector(".legend"), tip = figure.querySelector(".tip"), off = new Set();
  const WIDTH = 900, HEIGHT = 340, LEFT = 70, BOTTOM = 36, TOP = 10, RIGHT = 12;
  svg.setAttribute("viewBox", `0 0 ${WIDTH} ${HEIGHT}`);
  const look = (k, dash = DASHES[k % DASHES.length]) => ({ stroke: COLOURS[k % COLOURS.length], "stroke-dasharray": dash });

  function draw() {
    const lines = data[figure.dataset.chart][select.value];
    legend.replaceChildren(...lines.map((line, k) => {
      const button = document.createElement("button"), mark = create("svg", { viewBox: "0 0 28 10" });
      mark.append(create("line", { x1: 0, x2: 28, y1: 5, y2: 5, "stroke-width": 2.5, ...look(k) }));
      button.append(mark, line.name);
      button.setAttribute("aria-pressed", String(!off.has(line.name)));
      button.onclick = () => { off.has(line.name) ? off.delete(line.name) : off.add(line.name); draw(); };
      return button;
    }));
    const on = lines.map((line, k) => ({ ...line, k })).filter(line => !off.has(line.name));
    svg.replaceChildren();
    const values = on.flatMap(line => line.y.flatMap((y, i) => y === null ? [] : [y - line.s[i], y + line.s[i]]));
    if (!values.length) return;
    let low = Math.min(...values), high = Math.max(...values);
    if (low === high) { low -= Math.abs(low) * .05 + 1e-9; high += Math.abs(high) * .05 + 1e-9; }
    const rounds = on.flatMap(line => line.x), first = Math.min(...rounds), last = Math.max(...rounds, first + 1);
    const px = x => LEFT + (x - first) / (last - first) * (WIDTH - LEFT - RIGHT);
    const py = y => HEIGHT - BOTTOM - (y - low) / (high - low) * (HEIGHT - BOTTOM - TOP);
    for (const y of steps(low, high)) {
      svg.append(create("line", { class: "grid", x1: LEFT, x2: WIDTH - RIGHT, y1: py(y), y2: py(y) }));
      svg.append(create("text", { x: LEFT - 6, y: py(y) + 4, "text-anchor": "end" }, shown(y)));
    }
    for (const x of steps(first, last).filter(Number.isInteger))
      svg.append(create("text", { x: px(x), y: HEIGHT - BOTTOM + 16, "text-anchor": "middle" }, String(x)));
    svg.append(create("text", { x: (LEFT + WIDTH) / 2, y: HEIGHT - 4, "text-anchor": "middle" }, "rounds done"));
    for (const line of on) {
      const points = line.x.map((x, i) => [x, line.y[i], line.s[i]]).filter(point => point[1] !== null);
      const path = points.map(([x, y]) => `${px(x)},${py(y)}`).join(" ");
      if (points.some(point => point[2])) {
        const upper = points.map(([x, y, s]) => `${px(x)},${py(y + s)}`), lower = points.map(([x, y, s]) => `${px(x)},${py(y - s)}`);
        svg.append(create("polygon", { points: [...upper, ...lower.reverse()].join(" "), fill: look(line.k).stroke, opacity: .13 }));
      }
      svg.append(create("polyline", { points: path, fill: "none", "stroke-width": 2, ...look(line.k) }));
      if (points.length === 1) svg.append(create("circle", { cx: px(points[0][0]), cy: py(points[0][1]), r: 3, fill: look(line.k).stroke }));
    }
    const cursor = create("line", { class: "cursor", y1: TOP, y2: HEIGHT - BOTTOM, visibility: "hidden" });
    svg.append(cursor);
    svg.onpointerleave = () => { tip.style.display = "none"; cursor.setAttribute("visibility", "hidden"); };
    svg.onpointermove = event => {
      const box = svg.getBoundingClientRect(), at = first + ((event.clientX - box.left) / box.width * WIDTH - LEFT) / (WIDTH - LEFT - RIGHT) * (last - first);
      const x = [...new Set(rounds)].reduce((one, other) => Math.abs(other - at) < Math.abs(one - at) ? other : one);
      cursor.setAttribute("x1", px(x)); cursor.setAttribute("x2", px(x)); cursor.setAttribute("visibility", "visible");
      const found = on.map(line => [line, line.x.indexOf(x)]).filter(([line, i]) => i >= 0 && line.y[i] !== null);
      found.sort(([one, i], [other, j]) => other.y[j] - one.y[i]);
      tip.replaceChildren(`after ${x}`);
      for (const [line, i] of found.slice(0, 15)) {
        const row = document.createElement("div");
        row.textContent = `${line.name}: ${shown(line.y[i])}${line.s[i] ? " ± " + shown(line.s[i]) : ""}`;
        row.style.color = COLOURS[line.k % COLOURS.length];
        tip.append(row);
      }
      tip.style.display = "block";
      const left = event.clientX - figure.getBoundingClientRect().left;
      tip.style.left = `${Math.max(0, left + 14 + tip.offsetWidth > figure.clientWidth ? left - tip.offsetWidth - 14 : left + 14)}px`;
      tip.style.top = `${event.clientY - figure.getBoundingClientRect().top + 10}px`;
    };
  }
  select.onchange = draw;
  draw();
}
document.querySelectorAll("figure[data-chart]").forEach(chart);

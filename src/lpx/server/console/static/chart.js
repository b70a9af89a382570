// A chart over time: one or two lines, an axis from zero, and in words what it shows now.
import uPlot from "./vendor/uplot.js";
import { KEPT, figures } from "./live-figures.js";
import { preferences } from "./preferences.js";
import { language, text } from "./texts.js";
import { html, useLayoutEffect, useRef, useState } from "./ui.js";

const HEIGHT = 128;

/**
 * `lines` names series of the live figures with their colour's name; `most` is the least upper end of the axis; `mark` a
 * value that gets a dashed line of its own.
 */
export function Chart({ title, value, past = false, lines, most, mark, format, legend }) {
  const place = useRef(null);
  const plot = useRef(null);
  const markNow = useRef(mark);
  markNow.current = mark;
  useLayoutEffect(() => {
    plot.current = make(place.current, lines, most, markNow, format);
    const resize = new ResizeObserver(() => {
      const width = place.current.clientWidth;
      if (width > 0 && width !== plot.current.width) plot.current.setSize({ width, height: HEIGHT });
    });
    resize.observe(place.current);
    return () => {
      resize.disconnect();
      plot.current.destroy();
    };
  }, [preferences.theme, language(), useDarkness()]);
  useLayoutEffect(() => {
    plot.current.setData([figures.times, ...lines.map(({ name }) => figures.series[name])]);
  });
  return html`
    <figure class="chart">
      <figcaption>
        <span class="title">${title}</span>
        <span class=${past ? "value past" : "value"}>${value}</span>
      </figcaption>
      <div class="plot" ref=${place} role="img" aria-label=${text(past ? "before" : "now", title, value)}></div>
      ${legend && html`
        <p class="legend">${lines.map(({ name, label }) => html`<span><i class=${name}></i>${label}</span>`)}</p>`}
    </figure>
  `;
}

const DARK = matchMedia("(prefers-color-scheme: dark)");

function useDarkness() {
  const [dark, setDark] = useState(DARK.matches);
  useLayoutEffect(() => {
    const follow = () => setDark(DARK.matches);
    DARK.addEventListener("change", follow);
    return () => DARK.removeEventListener("change", follow);
  }, []);
  return dark;
}

function make(place, lines, most, mark, format) {
  const ink = (name) => colour(place, name);
  const axis = { stroke: ink("--muted"), grid: { stroke: ink("--grid"), width: 1 }, ticks: { show: false }, font: "11px system-ui" };
  return new uPlot(
    {
      width: place.clientWidth || 300,
      height: HEIGHT,
      legend: { show: false },
      cursor: { show: false },
      padding: [8, 24, 0, 0],
      scales: {
        x: { time: true, range: () => [Date.now() / 1000 - KEPT, Date.now() / 1000] },
        y: { range: (_, __, highest) => [0, top(Math.max(highest ?? 0, most ?? 0, mark.current ?? 0))] },
      },
      axes: [
        { ...axis, size: 22, space: 70, values: (_, ticks) => ticks.map(clock) },
        { ...axis, size: 54, space: 28, values: (_, ticks) => ticks.map(format ?? String) },
      ],
      series: [
        {},
        ...lines.map(({ name, ink: own }) => ({
          label: name,
          stroke: ink(own),
          fill: lines.length === 1 ? ink(`${own}-soft`) : undefined,
          width: 1.5,
          points: { show: true, filter: (self, index) => lonely(self.data[index]), size: 4, fill: ink(own) },
          spanGaps: false,
        })),
      ],
      hooks: { draw: [(self) => drawMark(self, mark.current, ink("--mark"))] },
    },
    [figures.times, ...lines.map(({ name }) => figures.series[name])],
    place,
  );
}

/** Points without neighbours make no line: they are shown as dots. */
function lonely(values) {
  const has = (at) => (values[at] ?? null) !== null;
  return values.flatMap((_, at) => (has(at) && !has(at - 1) && !has(at + 1) ? [at] : []));
}

function top(highest) {
  return highest > 0 ? highest * 1.1 : 1;
}

function drawMark(self, value, ink) {
  if (!value) return;
  const y = self.valToPos(value, "y", true);
  const { left, width } = self.bbox;
  self.ctx.save();
  self.ctx.strokeStyle = ink;
  self.ctx.setLineDash([6, 4]);
  self.ctx.beginPath();
  self.ctx.moveTo(left, y);
  self.ctx.lineTo(left + width, y);
  self.ctx.stroke();
  self.ctx.restore();
}

function clock(seconds) {
  return new Date(seconds * 1000).toLocaleTimeString(language(), { hour: "2-digit", minute: "2-digit", second: "2-digit", hour12: false });
}

/** A custom property as a colour that a canvas takes: light-dark() is worked out by the browser only where it is used. */
function colour(place, name) {
  const probe = document.createElement("i");
  probe.style.color = `var(${name})`;
  place.append(probe);
  const found = getComputedStyle(probe).color;
  probe.remove();
  return found;
}

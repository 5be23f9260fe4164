"use strict";
// The plots of the pages: <figure data-plot="KIND"> with its data as JSON beside it. A page without scripts has the same
// numbers in its tables, or names the command that prints them.
(() => {
  const UNITS = [[1, "s"], [1e-3, "ms"], [1e-6, "µs"], [1e-9, "ns"]];
  const PREFIXES = [[1e12, "T"], [1e9, "G"], [1e6, "M"], [1e3, "k"], [1, ""]];
  const shown = (value, table, unit) => {
    if (value == null) return "–";
    const [size, name] = table.find(([size]) => Math.abs(value) >= size) || table[table.length - 1];
    return `${Number((value / size).toPrecision(3))} ${name}${unit}`;
  };
  const seconds = (value) => (value === 0 ? "0" : shown(value, UNITS, ""));
  const scaled = (unit) => (value) => shown(value, PREFIXES, unit);
  const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

  const axis = (label, values, more) => ({
    label, stroke: colour("--muted"), grid: { stroke: colour("--line"), width: 1 }, ticks: { stroke: colour("--line") },
    values: (_, splits) => splits.map((each) => (each == null ? "" : values(each))), size: 70, ...more,
  });
  const line = (label, name, more) => ({ label, stroke: colour(name), width: 2, points: { show: false }, spanGaps: true, ...more });
  const dots = (label, name, size) => ({ label, stroke: colour(name), paths: () => null, points: { show: true, size, fill: colour(name), stroke: colour(name) } });
  const constant = (x, value) => x.map(() => value);

  // Each kind makes, of its data, what uPlot takes: columns of numbers, and how they look.
  const KINDS = {
    latency(data) {
      const x = data.points.map((point) => point[0]);
      const columns = [x, data.points.map((point) => point[1])];
      const series = [{}, line("best so far", "--plot-1", { paths: uPlot.paths.stepped({ align: 1 }) })];
      for (const [name, style] of [["baseline", "--plot-2"], ["bound", "--plot-3"], ["forecast", "--plot-4"]]) {
        if (data.lines[name]) {
          columns.push(constant(x, data.lines[name]));
          series.push(line(name, style, { dash: [6, 4] }));
        }
      }
      return { columns, series, x: axis("time since the job began", (value) => `${Number(value.toPrecision(3))} s`, { size: 50 }), y: axis("", seconds), log: false };
    },
    trials(data) {
      const x = data.points.map((point) => point[0]), secs = data.points.map((point) => point[1]);
      const known = secs.filter((value) => value != null);
      const lowest = Math.min(...known, ...(data.bound ? [data.bound] : []), ...(known.length ? [] : [1]));
      let least = null;
      const best = secs.map((value) => (least = value == null ? least : least == null ? value : Math.min(least, value)));
      const columns = [x, secs, best, secs.map((value) => (value == null ? lowest / 1.5 : null))];
      const series = [{}, dots("trial", "--plot-1", 5), line("best so far", "--plot-3", { paths: uPlot.paths.stepped({ align: 1 }) }), dots("failed (below)", "--plot-4", 6)];
      for (const [name, style] of [["bound", "--plot-3"], ["baseline", "--plot-2"]]) {
        if (data[name]) {
          columns.push(constant(x, data[name]));
          series.push(line(name, style, { dash: [6, 4] }));
        }
      }
      return { columns, series, x: axis("order", (value) => value, { size: 50 }), y: axis("", seconds), log: true };
    },
    scatter(data) {
      const x = data.points.map((point) => point[0]);
      const of = (series) => data.points.map((point) => (point[2] === series ? point[1] : null));
      const all = data.points.map((point) => point[1]);
      const range = [Math.min(0, ...all) - 0.05, Math.max(1, ...all) + 0.05];
      const series = [{}, dots("held-out task", "--plot-1", 5), dots("in the shadow", "--plot-2", 5)];
      const plain = (value) => Number(value.toPrecision(3));
      return { columns: [x, of(0), of(1)], series, range, x: axis("measured speed over the fastest", plain, { size: 50 }), y: axis("predicted score", plain), log: false };
    },
    savings(data) {
      const x = data.points.map((point) => point[0]);
      const columns = [x, data.points.map((point) => point[1]), data.points.map((point) => point[2])];
      const all = [...columns[1], ...columns[2]];
      const range = [Math.min(0, ...all) * 1.05, Math.max(0, ...all) * 1.05 || 1];
      const series = [{}, line("over the baseline", "--plot-2"), line("over default schedules", "--plot-1")];
      const day = (value) => new Date(value * 86400e3).toISOString().slice(0, 10);
      return { columns, series, range, x: axis("day (UTC)", day, { size: 50 }), y: axis("", (value) => `${Number(value.toPrecision(3))} s`), log: false };
    },
    roofline(data) {
      const ridges = data.levels.map((level) => data.peak / level.bytes_per_sec);
      const from = Math.min(data.intensity, ...ridges) / 4, to = Math.max(data.intensity, ...ridges) * 4;
      const x = Array.from({ length: 65 }, (_, at) => from * (to / from) ** (at / 64));
      x.push(data.intensity);
      x.sort((one, other) => one - other);
      const at = (value) => x.map((each) => (each === data.intensity ? value : null));
      const columns = [x], series = [{}];
      data.levels.forEach((level, which) => {
        columns.push(x.map((each) => Math.min(data.peak, each * level.bytes_per_sec)));
        series.push(line(level.name, which % 2 ? "--plot-2" : "--muted"));
      });
      for (const [name, style] of [["baseline", "--plot-4"], ["best", "--plot-1"]]) {
        if (data[name]) {
          columns.push(at(data[name]));
          series.push(dots(name, style, 10));
        }
      }
      return { columns, series, x: axis("FLOP per byte", scaled(""), { size: 50 }), y: axis("", scaled("FLOP/s")), log: true, logX: true };
    },
  };

  const plots = new Map();

  function draw(figure) {
    const place = figure.querySelector(".plot");
    const data = plots.get(figure).data;
    plots.get(figure).drawn?.destroy();
    const kind = KINDS[figure.dataset.plot](data);
    const size = () => ({ width: place.clientWidth, height: 260 });
    plots.get(figure).drawn = new uPlot({
      ...size(), series: kind.series, axes: [kind.x, kind.y], legend: { live: false },
      cursor: { drag: { x: true, y: false } },
      scales: { x: { time: false, distr: kind.logX ? 3 : 1 }, y: { distr: kind.log ? 3 : 1, ...(kind.log ? {} : { range: (_, __, most) => kind.range || [0, most * 1.05 || 1] }) } },
    }, kind.columns, place);
    const last = data.points?.findLast((point) => point[1] != null);
    place.setAttribute("role", "img");
    place.setAttribute("aria-label", `${figure.dataset.title}: ${(data.points || kind.columns[0]).length} points${last && !kind.range ? `, the last at ${seconds(last[1])}` : ""}`);
    figure.dataset.points = String((data.points || kind.columns[0]).length);
  }

  function start() {
    for (const figure of document.querySelectorAll("figure[data-plot]")) {
      plots.set(figure, { data: JSON.parse(figure.querySelector("script").textContent) });
      draw(figure);
      new ResizeObserver(() => plots.get(figure).drawn.setSize({ width: figure.querySelector(".plot").clientWidth, height: 260 })).observe(figure);
    }
  }

  // The job's stream sends a point for each batch that was reported.
  document.addEventListener("point", (event) => {
    const figure = document.querySelector('figure[data-plot="latency"]');
    if (!figure || !plots.has(figure)) return;
    const data = plots.get(figure).data, point = JSON.parse(event.detail.data);
    data.points.push(point);
    data.lines.forecast = point[2];
    draw(figure);
  });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => plots.forEach((_, figure) => draw(figure)));
  start();
})();

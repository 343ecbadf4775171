"use strict";
(() => {
  const all = JSON.parse(document.getElementById("data").textContent);
  const whole = [];
  for (const [id, data] of [["time", all], ["moment", all.moment]]) {
    if (data) whole.push(live(document.getElementById(id), data));
  }

  // A section with pictures on one axis. Returns what shows all of it.
  function live(section, data) {
    const [begin, step, count, zone] = data.axis;
    const chart = section.querySelector(".chart"), controls = section.querySelector(".controls");
    const readout = controls.querySelector("output"), also = controls.querySelector("select");
    const slider = controls.querySelector("input");
    const plots = [...chart.querySelectorAll(".lane:not(.axis) .plot")];
    const curves = new Map(data.plots.map(one => [one.name, one]));
    let from = 0, width = count, at = null, drag = null;

    const two = number => String(number).padStart(2, "0");
    const many = Math.floor((begin + zone) / 86400) !== Math.floor((begin + step * count + zone) / 86400);
    const clock = (seconds, short) => {
      const then = new Date((seconds + zone) * 1000);
      const day = many ? `${two(then.getUTCMonth() + 1)}-${two(then.getUTCDate())} ` : "";
      return `${day}${two(then.getUTCHours())}:${two(then.getUTCMinutes())}` + (short ? "" : `:${two(then.getUTCSeconds())}`);
    };
    const number = value => value === null || value === undefined ? "-" : String(Number(value.toPrecision(3)));

    for (const plot of plots) {
      const cursor = document.createElement("div");
      cursor.className = "cursor";
      cursor.hidden = true;
      plot.append(cursor);
      plot.cursor = cursor;
      plot.curve = curves.get(plot.dataset.plot);
      if (plot.curve) {
        plot.now = document.createElement("span");
        plot.now.className = "now";
        plot.previousElementSibling.append(plot.now);
      }
    }

    const lengths = [1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 10800, 14400, 21600, 43200, 86400, 604800];
    const noRoom = [["bare", 0.0122], ["late", 0.0265]];
    function ticks() {
      const long = width * step, first = begin + from * step;
      const apart = lengths.find(one => long / one <= 7) || long / 7;
      for (const axis of chart.querySelectorAll(".axis .plot")) {
        axis.textContent = "";
        for (let tick = Math.ceil((first + zone) / apart) * apart - zone; tick < first + long; tick += apart) {
          const mark = document.createElement("span"), text = document.createElement("span");
          const place = (tick - first) / long;
          text.textContent = clock(tick, apart >= 60);
          mark.className = ["tick", ...noRoom.filter(([, each]) => place > 1 - each * text.textContent.length).map(([name]) => name)].join(" ");
          mark.style.left = `${100 * place}%`;
          mark.append(text);
          axis.append(mark);
        }
      }
    }

    function draw() {
      for (const svg of chart.querySelectorAll("svg")) svg.setAttribute("viewBox", `${from} 0 ${width} ${svg.dataset.h}`);
      for (const name of chart.querySelectorAll(".in")) {
        const left = Math.max(0, (name.dataset.x - from) / width), right = (+name.dataset.x + +name.dataset.w - from) / width;
        name.hidden = right <= 0.03 || left >= 1;
        name.style.left = `${100 * left}%`;
        name.style.maxWidth = `${100 * (Math.min(1, right) - left)}%`;
      }
      ticks();
      point(at);
    }

    function show(newFrom, newWidth) {
      width = Math.min(count, Math.max(Math.min(count, 4), newWidth));
      from = Math.min(count - width, Math.max(0, newFrom));
      draw();
    }

    function point(place) {
      at = place;
      for (const plot of plots) {
        const x = place === null ? -1 : (place + 0.5 - from) / width;
        plot.cursor.hidden = x < 0 || x > 1;
        plot.cursor.style.left = `${100 * x}%`;
        if (!plot.curve) continue;
        const one = plot.curve;
        if (place === null || one.mid[place] === null) {
          plot.now.textContent = place === null ? "" : "no reading";
          continue;
        }
        const range = `${number(one.low[place])} to ${number(one.high[place])} ${one.unit}, median ${number(one.mid[place])}`;
        const chosen = one.series.filter(s => (s[3] && one.series.length > 1) || wanted(s)).map(s => `${s[0]} ${number(s[4][place])}`);
        plot.now.textContent = [range, ...chosen].join("; ");
      }
      if (place === null) return;
      readout.textContent = `at ${clock(begin + place * step, false)}`;
      slider.value = place;
      slider.setAttribute("aria-valuetext", spoken());
    }

    function spoken() {
      const told = plots.filter(plot => plot.curve).map(plot => `${plot.curve.title} ${plot.now.textContent}`);
      return [`at ${clock(begin + at * step, false)}`, ...told].join(". ");
    }

    const wanted = series => also.value !== "" && also.value === (series[1] !== null ? `r${series[1]}` : `c${series[2]}`);
    function drawAlso() {
      for (const plot of plots) {
        if (!plot.curve) continue;
        const svg = plot.querySelector("svg");
        for (const old of svg.querySelectorAll(".also")) old.remove();
        for (const series of plot.curve.series.filter(wanted)) {
          const path = document.createElementNS("http://www.w3.org/2000/svg", "path");
          let line = "", last = -1e9;
          const apart = Math.max(1, Math.ceil(120 / step));
          series[4].forEach((value, place) => {
            if (value === null) return;
            const y = 98 - 96 * Math.min(1, Math.max(0, value / plot.curve.most));
            line += `${place - last <= apart ? "L" : "M"}${place + 0.5} ${y.toFixed(1)}`;
            last = place;
          });
          path.setAttribute("class", "also");
          path.setAttribute("d", line || "M0 0");
          svg.append(path);
        }
      }
      point(at);
    }

    const placeOf = (event, plot) => {
      const box = plot.getBoundingClientRect();
      return from + Math.min(1, Math.max(0, (event.clientX - box.left) / box.width)) * width;
    };
    const step1 = place => Math.min(count - 1, Math.max(0, Math.floor(place)));
    for (const plot of plots) {
      plot.addEventListener("pointermove", event => {
        const place = placeOf(event, plot);
        point(step1(place));
        if (drag && drag.plot === plot) {
          const low = Math.min(drag.begin, place), high = Math.max(drag.begin, place);
          drag.box.style.left = `${100 * (low - from) / width}%`;
          drag.box.style.width = `${100 * (high - low) / width}%`;
          drag.low = low;
          drag.high = high;
        }
      });
      plot.addEventListener("pointerdown", event => {
        if (event.pointerType !== "mouse" || event.button !== 0) return;
        const box = document.createElement("div");
        box.className = "drag";
        plot.append(box);
        const place = placeOf(event, plot);
        drag = { plot, box, begin: place, low: place, high: place };
        plot.setPointerCapture(event.pointerId);
      });
      const end = () => {
        if (!drag || drag.plot !== plot) return;
        const { low, high, box } = drag;
        box.remove();
        drag = null;
        if (high - low > width * 0.01) show(low, high - low);
      };
      plot.addEventListener("pointerup", end);
      plot.addEventListener("pointercancel", end);
      plot.addEventListener("dblclick", () => show(0, count));
    }

    const actions = {
      in: () => { const middle = at === null ? from + width / 2 : at; show(middle - width / 4, width / 2); },
      out: () => show(from - width / 2, width * 2),
      back: () => show(from - width / 4, width),
      on: () => show(from + width / 4, width),
      all: () => show(0, count),
    };
    for (const button of controls.querySelectorAll("button")) button.addEventListener("click", actions[button.dataset.do]);
    also.addEventListener("change", drawAlso);
    const go = next => {
      if (next < from || next >= from + width) show(next - width / 2, width);
      point(next);
    };
    // For a screen reader a slider has its value; what it says must not come twice.
    slider.max = count - 1;
    slider.addEventListener("input", () => go(+slider.value));
    slider.addEventListener("focus", () => readout.setAttribute("aria-live", "off"));
    slider.addEventListener("blur", () => readout.setAttribute("aria-live", "polite"));
    chart.addEventListener("keydown", event => {
      if (event.ctrlKey || event.metaKey || event.altKey) return;
      const by = Math.max(1, Math.round(width / 60));
      const move = { ArrowLeft: -by, ArrowRight: by }[event.key];
      if (move !== undefined || event.key === "Home" || event.key === "End") {
        const now = at === null ? step1(from + width / 2) : at;
        go(event.key === "Home" ? 0 : event.key === "End" ? count - 1 : step1(now + move));
        readout.textContent = spoken();
      } else if (event.key === "+" || event.key === "=") actions.in();
      else if (event.key === "-") actions.out();
      else if (event.key === "0") actions.all();
      else return;
      event.preventDefault();
    });
    controls.hidden = false;
    draw();
    return () => show(0, count);
  }

  for (const link of document.querySelectorAll(".to-table")) {
    link.addEventListener("click", () => {
      const target = document.getElementById(link.hash.slice(1));
      if (target) target.open = true;
    });
  }
  let closed = [];
  window.addEventListener("beforeprint", () => {
    // Not the readings: they are in the pictures, and would take ten pages.
    const wanted = "#t-events, #t-bars, #t-ranks, #t-checks, #t-node, #t-cards, #job details, #stacks details";
    closed = [...document.querySelectorAll(wanted)].filter(one => !one.open && one.querySelectorAll("tr").length < 80);
    for (const one of closed) one.open = true;
    for (const show of whole) show();
  });
  window.addEventListener("afterprint", () => { for (const one of closed) one.open = false; });
})();

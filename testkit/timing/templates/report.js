"use strict";
(() => {
  const find = (selector, root = document) => root.querySelector(selector);
  const every = (selector, root = document) => [...root.querySelectorAll(selector)];
  const data = JSON.parse(find("#data").textContent);
  const PAGE = 25;
  document.documentElement.classList.add("js");

  // The same words as in the rest of the page.
  const spent = (seconds) => {
    if (seconds <= 0) return "0 s";
    const scales = [[0.0009995, 1e6, 0, "µs"], [0.00995, 1e3, 1, "ms"], [0.9995, 1e3, 0, "ms"], [9.995, 1, 2, "s"], [59.95, 1, 1, "s"]];
    for (const [limit, factor, digits, unit] of scales) {
      if (seconds < limit) return (seconds * factor).toFixed(digits) + " " + unit;
    }
    const two = (number) => String(number).padStart(2, "0");
    if (seconds < 3599.5) return Math.floor(Math.round(seconds) / 60) + " min " + two(Math.round(seconds) % 60) + " s";
    const minutes = Math.round(seconds / 60);
    return Math.floor(minutes / 60).toLocaleString("en") + " h " + two(minutes % 60) + " min";
  };
  const size = (mebibytes) => !mebibytes ? "" : mebibytes < 1024 ? mebibytes + " MiB" : (mebibytes / 1024).toFixed(1) + " GiB";
  const counted = (number, noun) => number.toLocaleString("en") + " " + noun + (number === 1 ? "" : "s");

  const cell = (text, className) => {
    const made = document.createElement("td");
    made.textContent = text; // never as markup
    if (className) made.className = className;
    return made;
  };

  // A row is {values, text, made()}: what it is sorted by, what is searched, and its <tr>.
  const readRows = (table) => every("tbody tr", table).map((row) => ({
    values: [...row.cells].map((one) => one.dataset.v === undefined ? one.textContent : Number(one.dataset.v)),
    text: row.textContent.toLowerCase(),
    made: () => row,
  }));

  const testRows = () => data.tests.map(([file, name, params, verdict, worker, setup, call, teardown, attempts, compiling, gpu]) => {
    let id = data.files[file] + (name < 0 ? "" : "::" + data.names[name]);
    if (params !== null) id += "[" + params + "]";
    const outcome = data.verdicts[verdict] + (attempts > 1 ? ", " + attempts + " attempts" : "");
    const values = [id, setup + call + teardown, outcome, setup, call, teardown, compiling, gpu, data.workers[worker]];
    let row = null;
    const made = () => {
      if (row) return row;
      row = document.createElement("tr");
      const bad = ["failed", "error", "rerun"].includes(data.verdicts[verdict]);
      const time = (micros) => cell(spent(micros / 1e6), "n");
      row.append(cell(id, "id"), time(values[1]), cell(outcome, bad ? "bad-word" : ""), time(setup), time(call), time(teardown));
      row.append(cell(compiling ? spent(compiling / 1e6) : "", "n"), cell(size(gpu), "n"), cell(data.workers[worker]));
      return row;
    };
    return { values, text: (id + " " + outcome + " " + data.workers[worker]).toLowerCase(), made, file };
  });

  const setUp = (root) => {
    const isTests = root.dataset.tests !== undefined;
    const body = find("tbody", root), input = find("input", root), output = find("output", root), more = find(".more", root), all = find(".all", root);
    const heads = every("th", root);
    const rows = isTests ? testRows() : readRows(root);
    let kept = rows, page = PAGE, chosen = null;

    const draw = () => {
      body.replaceChildren(...kept.slice(0, page).map((row) => row.made()));
      more.hidden = kept.length <= page;
      more.textContent = "Show " + Math.min(4 * PAGE, kept.length - page) + " more of " + counted(kept.length, "row");
    };
    const filter = () => {
      const words = input.value.toLowerCase().split(/\s+/).filter(Boolean);
      kept = rows.filter((row) => (chosen === null || row.file === chosen) && words.every((word) => row.text.includes(word)));
      const missing = isTests && data.all > rows.length ? ", the slowest of " + data.all.toLocaleString("en") : "";
      const where = chosen === null ? "" : " in " + data.files[chosen];
      if (all) all.hidden = chosen === null;
      output.textContent = counted(kept.length, "row") + where + " of " + rows.length.toLocaleString("en") + missing;
      page = PAGE;
      draw();
    };
    const sort = (column) => {
      const head = heads[column], numbers = head.classList.contains("n");
      const first = numbers ? "descending" : "ascending", second = numbers ? "ascending" : "descending";
      const order = head.getAttribute("aria-sort") === first ? second : first;
      for (const other of heads) other.setAttribute("aria-sort", other === head ? order : "none");
      const sign = order === "ascending" ? 1 : -1;
      rows.sort((a, b) => {
        const one = a.values[column], two = b.values[column];
        return sign * (numbers ? one - two : one < two ? -1 : one > two ? 1 : 0);
      });
      filter();
    };
    heads.forEach((head, column) => find("button", head).addEventListener("click", () => sort(column)));
    input.addEventListener("input", () => { chosen = null; mark(-1); filter(); });
    if (all) all.addEventListener("click", () => { chosen = null; mark(-1); filter(); });
    more.addEventListener("click", () => { page += 4 * PAGE; draw(); });
    filter();
    return { choose(file) { chosen = file; input.value = ""; filter(); } };
  };

  // The timeline.
  const lanes = every(".tracks"), readout = find("#readout");
  const box = ([begin, end]) => {
    const x = 1000 * begin / data.elapsed, width = Math.max(1, 1000 * (end - begin) / data.elapsed);
    return "M" + x.toFixed(1) + " 0h" + width.toFixed(1) + "v24h-" + width.toFixed(1) + "z";
  };
  const mark = (file) => lanes.forEach((lane, number) => {
    find(".chosen", lane).setAttribute("d", data.lanes[number].filter((part) => part[2] === file).map(box).join(""));
  });
  const point = (lane, place) => {
    const number = Number(lane.dataset.lane), part = data.lanes[number][place];
    lanes.forEach((other) => find(".cursor", other).setAttribute("d", other === lane && part ? box(part) : ""));
    lane.dataset.place = part ? place : "";
    if (!part) return;
    const [begin, end, file, tests, bad] = part;
    readout.textContent = find(".label", lane.parentNode).textContent + ", " + spent(begin / 1e6) + " to " + spent(end / 1e6) + ": "
      + (file < 0 ? "several files" : data.files[file]) + ", " + counted(tests, "test") + (bad ? ", " + bad + " failed" : "");
    readout.classList.add("set");
  };
  if (readout) readout.textContent = "Move over a worker, or focus it and use the arrow keys; Enter or a click lists a file's tests.";
  const tables = every(".table").map((root) => [root, setUp(root)]);
  const choose = (file) => {
    const entry = tables.find(([root]) => root.dataset.tests !== undefined);
    if (file < 0 || !entry) return;
    mark(file);
    entry[1].choose(file);
    find("#tests").scrollIntoView();
  };
  const chooseAt = (lane) => {
    const part = data.lanes[lane.dataset.lane][lane.dataset.place];
    if (part) choose(part[2]);
  };
  lanes.forEach((lane, number) => {
    const parts = data.lanes[number];
    lane.addEventListener("pointermove", (event) => {
      const frame = lane.getBoundingClientRect();
      const at = data.elapsed * (event.clientX - frame.left) / frame.width;
      const distance = ([begin, end]) => at < begin ? begin - at : at > end ? at - end : 0;
      let best = 0;
      parts.forEach((part, place) => { if (distance(part) < distance(parts[best])) best = place; });
      point(lane, best);
    });
    lane.addEventListener("click", () => chooseAt(lane));
    lane.addEventListener("keydown", (event) => {
      const place = lane.dataset.place ? Number(lane.dataset.place) : -1;
      const last = parts.length - 1;
      const to = { ArrowRight: Math.min(last, place + 1), ArrowLeft: Math.max(0, place - 1), Home: 0, End: last }[event.key];
      const other = { ArrowDown: lanes[number + 1], ArrowUp: lanes[number - 1] }[event.key];
      if (to !== undefined) point(lane, to);
      else if (other) other.focus();
      else if (event.key === "Enter") chooseAt(lane);
      else return;
      event.preventDefault();
    });
  });
  document.addEventListener("click", (event) => {
    const link = event.target.closest("[data-file]");
    if (!link) return;
    event.preventDefault();
    choose(data.files.indexOf(link.dataset.file || link.textContent));
  });

  // Paper cannot unfold.
  addEventListener("beforeprint", () => every("details").forEach((one) => { one.open = true; }));
})();

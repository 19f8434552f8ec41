// Sorts a table by the column whose head is clicked; a second click turns the order round. The dense model stays on top.
for (const table of document.querySelectorAll("table.sortable")) {
  const body = table.tBodies[0];
  const key = (row, column) => {
    const cell = row.cells[column];
    const number = Number(cell.dataset.v); // none where the cell has none, or it is infinite
    return Number.isNaN(number) ? cell.innerText.trim() : number;
  };
  const compare = (a, b, way) => {
    if (typeof a !== typeof b) return typeof a === "number" ? -1 : 1; // what has no number comes last, either way
    return way * (typeof a === "number" ? a - b : a.localeCompare(b, undefined, { numeric: true }));
  };
  [...table.tHead.rows[0].cells].forEach((head, column) => {
    const sort = () => {
      const down = head.getAttribute("aria-sort") === "ascending";
      for (const other of head.parentNode.cells) other.removeAttribute("aria-sort");
      head.setAttribute("aria-sort", down ? "descending" : "ascending");
      const rows = [...body.rows].filter((row) => !row.classList.contains("dense"));
      for (const row of rows) row.classList.remove("first");
      rows.sort((one, other) => compare(key(one, column), key(other, column), down ? -1 : 1));
      body.append(...rows);
    };
    head.tabIndex = 0;
    head.title = "Sort by this column";
    head.addEventListener("click", sort);
    head.addEventListener("keydown", (event) => {
      if (event.key === "Enter" || event.key === " ") { event.preventDefault(); sort(); }
    });
  });
}

// A link and a QR code for others on the local network.

import { call, memoryPath } from "./api.js";
import { say } from "./elements.js";

const NS = "http://www.w3.org/2000/svg";
const QUIET = 4; // modules around the code, as the standard asks

const find = (id) => document.getElementById(id);

export function setUpSharing(memory) {
  const show = async () => {
    find("share-text").textContent = "…";
    find("share-code").replaceChildren();
    find("share-result").hidden = true;
    try {
      const scope = document.querySelector('input[name="share-scope"]:checked').value;
      const shared = await call(memoryPath(memory(), "/share"), { method: "POST", json: { scope } });
      find("share-text").textContent = `This link lets guests ${scope === "learn" ? "ask and teach" : "ask, not teach,"} in “${memory()}”, and nothing else.`;
      find("share-link").value = shared.link;
      draw(find("share-code"), shared.qr);
      find("share-result").hidden = false;
    } catch (error) { find("share-text").textContent = error.message; }
  };
  find("share").addEventListener("click", () => { find("share-dialog").showModal(); show(); });
  for (const choice of document.querySelectorAll('input[name="share-scope"]')) choice.addEventListener("change", show);
  find("share-copy").addEventListener("click", async () => {
    find("share-link").select();
    try { await navigator.clipboard.writeText(find("share-link").value); } catch { document.execCommand("copy"); }
    say("The link was copied.");
  });
}

function draw(svg, rows) {
  const side = rows.length + 2 * QUIET;
  svg.setAttribute("viewBox", `0 0 ${side} ${side}`);
  const path = document.createElementNS(NS, "path");
  path.setAttribute("d", rows.flatMap((row, y) => [...row].map((dark, x) => (dark === "1" ? `M${x + QUIET} ${y + QUIET}h1v1h-1z` : ""))).join(""));
  svg.replaceChildren(path);
}

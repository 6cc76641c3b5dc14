// A link for others on the local network.

import { call, memoryPath } from "./api.js";
import { find, say } from "./elements.js";

export function setUpSharing(memory) {
  const show = async () => {
    find("share-text").textContent = "…";
    find("share-result").hidden = true;
    try {
      const scope = document.querySelector('input[name="share-scope"]:checked').value;
      const shared = await call(memoryPath(memory(), "/share"), { method: "POST", json: { scope } });
      find("share-text").textContent = `This link lets guests ${scope === "learn" ? "ask and teach" : "ask, not teach,"} in “${memory()}”, and nothing else.`;
      find("share-link").value = shared.link;
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

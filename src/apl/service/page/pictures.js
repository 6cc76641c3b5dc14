// Pictures from files and folders: sorted by folder, shrunk before they are sent, and nothing left out in silence.

const SUFFIXES = /\.(png|jpe?g|webp|gif|bmp|tiff?|heic|heif|avif)$/i;
const NOT_FOR_PEOPLE = /^(\.|thumbs\.db$|desktop\.ini$)/i;

// A photograph of twelve megapixels is more than the service takes, and far more than it looks at.
export async function shrunk(file, side) {
  const bitmap = await createImageBitmap(file);
  const scale = Math.min(1, side / Math.max(bitmap.width, bitmap.height));
  const canvas = document.createElement("canvas");
  canvas.width = Math.max(1, Math.round(bitmap.width * scale));
  canvas.height = Math.max(1, Math.round(bitmap.height * scale));
  const context = canvas.getContext("2d");
  context.imageSmoothingQuality = "high";
  context.drawImage(bitmap, 0, 0, canvas.width, canvas.height);
  bitmap.close();
  return canvas;
}

export function whyUnreadable(file) {
  return /\.hei[cf]$/i.test(file.name)
    ? "HEIC, which this browser cannot read: save it as JPEG"
    : "not a picture this browser can read";
}

// What was dropped, folders included. Must be called while the drop event lasts; what it returns may take its time.
export function dropped(transfer) {
  const entries = [...transfer.items].map((item) => item.webkitGetAsEntry?.()).filter(Boolean);
  const files = [...transfer.files];
  return entries.some((entry) => entry.isDirectory) ? walk(entries) : Promise.resolve({ found: files.map((file) => ({ file, path: file.name })), empty: [] });
}

export const chosen = (files) => ({
  found: [...files].map((file) => ({ file, path: file.webkitRelativePath || file.name })), empty: [],
});

async function walk(entries, found = [], empty = []) {
  for (const entry of entries) {
    if (entry.isFile) {
      const file = await new Promise((resolve, reject) => entry.file(resolve, reject));
      found.push({ file, path: entry.fullPath.replace(/^\//, "") });
    } else {
      const inside = await children(entry.createReader());
      if (!inside.some((one) => !NOT_FOR_PEOPLE.test(one.name))) empty.push(entry.name);
      await walk(inside, found, empty);
    }
  }
  return { found, empty };
}

// A reader gives at most a hundred at a time, and nothing when it is done.
async function children(reader) {
  const all = [];
  for (;;) {
    const part = await new Promise((resolve, reject) => reader.readEntries(resolve, reject));
    if (!part.length) return all;
    all.push(...part);
  }
}

// Folders are names; pictures beside folders, or in none, have no name yet.
export function sorted({ found, empty }) {
  const groups = new Map();
  const skipped = empty.map((name) => ({ name, why: "an empty folder" }));
  const folders = new Set(found.map(({ path }) => parent(path)));
  const hasFolders = (folder) => [...folders].some((other) => other.startsWith(`${folder}/`));
  for (const { file, path } of found) {
    if (NOT_FOR_PEOPLE.test(file.name)) continue;
    if (!file.type.startsWith("image/") && !SUFFIXES.test(file.name)) {
      skipped.push({ name: path, why: "not a picture" });
      continue;
    }
    const folder = parent(path);
    const label = folder && !hasFolders(folder) ? folder.split("/").at(-1) : "";
    groups.set(label, [...(groups.get(label) ?? []), { file, path }]);
  }
  return { groups, skipped };
}

// Pictures that are asked about and not taught: the folders do not matter.
export const readable = (collected) => [...sorted(collected).groups.values()].flat();

const parent = (path) => path.split("/").slice(0, -1).join("/");

// What is kept in this browser: conversations in IndexedDB, settings in localStorage. It knows nothing of the page.
// Where the browser keeps nothing (private windows), both live in memory until the page is closed.

const SETTINGS_KEY = "mlxcel.settings";
const STORE = "conversations";

export const DEFAULTS = Object.freeze({
  system: "", temperature: null, top_p: null, top_k: null, min_p: null, max_tokens: null, seed: null,
  key: "", theme: "auto", model: "",
});

export function loadSettings() {
  try {
    return { ...DEFAULTS, ...JSON.parse(localStorage.getItem(SETTINGS_KEY) ?? "{}") };
  } catch {
    return { ...DEFAULTS };
  }
}

export function saveSettings(settings) {
  try {
    localStorage.setItem(SETTINGS_KEY, JSON.stringify(settings));
  } catch {
    // Kept until the page is closed.
  }
}

function request(action) {
  return new Promise((resolve, reject) => {
    action.onsuccess = () => resolve(action.result);
    action.onerror = () => reject(action.error);
  });
}

async function open() {
  const opening = indexedDB.open("mlxcel", 1);
  opening.onupgradeneeded = () => opening.result.createObjectStore(STORE, { keyPath: "id" });
  return request(opening);
}

class Memory {
  #all = new Map();
  persistent = false;
  async list() { return [...this.#all.values()]; }
  async put(conversation) { this.#all.set(conversation.id, structuredClone(conversation)); }
  async remove(id) { this.#all.delete(id); }
  async clear() { this.#all.clear(); }
}

class Database {
  persistent = true;
  #database;
  constructor(database) { this.#database = database; }
  #store(mode) { return this.#database.transaction(STORE, mode).objectStore(STORE); }
  list() { return request(this.#store("readonly").getAll()); }
  put(conversation) { return request(this.#store("readwrite").put(conversation)); }
  remove(id) { return request(this.#store("readwrite").delete(id)); }
  clear() { return request(this.#store("readwrite").clear()); }
}

export async function openStore() {
  try {
    return new Database(await open());
  } catch {
    return new Memory();
  }
}

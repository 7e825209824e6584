// Colours for code: comments, texts, numbers, words of the language. One scanner for all languages, told apart by a
// small table; what it does not know stays plain. Text only ever becomes text nodes.

const C_LIKE = { line: ["//"], block: [["/*", "*/"]], quotes: ["\"", "'"] };
const words = (text) => new Set(text.split(" "));

const JS_WORDS = "async await break case catch class const continue default delete do else export extends finally for " +
  "from function if import in instanceof let new null of return static super switch this throw true false try typeof " +
  "undefined var void while yield interface type enum implements readonly public private as";
const C_WORDS = "auto bool break case char class const constexpr continue default delete do double else enum extern " +
  "false float for goto if inline int long namespace new nullptr private protected public return short signed sizeof " +
  "static struct switch template this throw true try typedef typename union unsigned using virtual void volatile while";

const LANGUAGES = {
  js: { ...C_LIKE, quotes: ["\"", "'", "`"], words: words(JS_WORDS) },
  rust: {
    ...C_LIKE, quotes: ["\""], words: words("as async await break const continue crate dyn else enum extern false fn for " +
      "if impl in let loop match mod move mut pub ref return self Self static struct super trait true type unsafe use " +
      "where while Some None Ok Err"),
  },
  python: {
    line: ["#"], block: [["\"\"\"", "\"\"\""], ["'''", "'''"]], blockIsText: true, quotes: ["\"", "'"],
    words: words("and as assert async await break class continue def del elif else except False finally for from global " +
      "if import in is lambda None nonlocal not or pass raise return True try while with yield match case self"),
  },
  c: { ...C_LIKE, words: words(C_WORDS) },
  java: {
    ...C_LIKE, words: words(C_WORDS + " abstract boolean byte extends final finally implements import instanceof interface " +
      "native null package synchronized throws transient var val fun when object override string foreach let func guard"),
  },
  go: {
    ...C_LIKE, quotes: ["\"", "'", "`"], words: words("break case chan const continue default defer else fallthrough for " +
      "func go goto if import interface map package range return select struct switch type var nil true false"),
  },
  sh: {
    line: ["#"], block: [], quotes: ["\"", "'"], words: words("if then else elif fi for in do done while until case esac " +
      "function return export local set unset echo cd exit sudo"),
  },
  sql: {
    line: ["--"], block: [["/*", "*/"]], quotes: ["'", "\""], anyCase: true, words: words("select from where and or not " +
      "insert into values update set delete create table drop alter join left right inner outer on group by order having " +
      "limit as distinct null is in like between union all primary key foreign references index view with case when " +
      "then else end"),
  },
  json: { line: [], block: [], quotes: ["\""], words: words("true false null") },
  yaml: { line: ["#"], block: [], quotes: ["\"", "'"], words: words("true false null yes no") },
  html: { line: [], block: [["<!--", "-->"]], quotes: ["\"", "'"], words: words("") },
  css: { line: [], block: [["/*", "*/"]], quotes: ["\"", "'"], words: words("important media import from to") },
};

const ALIASES = {
  javascript: "js", jsx: "js", ts: "js", tsx: "js", typescript: "js", mjs: "js", rs: "rust", py: "python", python3: "python",
  cpp: "c", "c++": "c", cc: "c", h: "c", hpp: "c", cuda: "c", cs: "java", csharp: "java", kotlin: "java", kt: "java",
  swift: "java", scala: "java", golang: "go", bash: "sh", shell: "sh", zsh: "sh", console: "sh", toml: "yaml", ini: "yaml",
  yml: "yaml", jsonc: "json", xml: "html", svg: "html", scss: "css",
};

const WORD = /[\p{L}_$][\p{L}\p{N}_$]*/uy;
const NUMBER = /0[xX][\da-fA-F_]+|\d[\d_]*(?:\.\d+)?(?:[eE][+-]?\d+)?/y;

/** Code as a fragment of spans. */
export function highlight(code, name) {
  const fragment = document.createDocumentFragment();
  const language = LANGUAGES[ALIASES[name] ?? name];
  if (!language) {
    fragment.append(code);
    return fragment;
  }
  let plain = "";
  for (const [kind, text] of scan(code, language)) {
    if (!kind) {
      plain += text;
      continue;
    }
    if (plain) fragment.append(plain);
    plain = "";
    const span = document.createElement("span");
    span.className = `hl-${kind}`;
    span.textContent = text;
    fragment.append(span);
  }
  if (plain) fragment.append(plain);
  return fragment;
}

function* scan(code, language) {
  let at = 0;
  while (at < code.length) {
    const found = comment(code, at, language) ?? quoted(code, at, language) ?? token(code, at, language);
    yield found;
    at += found[1].length;
  }
}

function comment(code, at, language) {
  if (language.line.some((mark) => code.startsWith(mark, at)) && !isInsideWord(code, at, language)) {
    const end = code.indexOf("\n", at);
    return ["comment", code.slice(at, end < 0 ? code.length : end)];
  }
  const block = language.block.find(([open]) => code.startsWith(open, at));
  if (!block) return null;
  const end = code.indexOf(block[1], at + block[0].length);
  const text = code.slice(at, end < 0 ? code.length : end + block[1].length);
  return [language.blockIsText ? "text" : "comment", text];
}

// In shells, `a#b` and `$#` are no comments.
function isInsideWord(code, at, language) {
  return language.line[0] === "#" && at > 0 && /[\w$]/.test(code[at - 1]);
}

function quoted(code, at, language) {
  const quote = code[at];
  if (!language.quotes.includes(quote)) return null;
  let end = at + 1;
  while (end < code.length && code[end] !== quote && (quote === "`" || code[end] !== "\n")) {
    end += code[end] === "\\" ? 2 : 1;
  }
  return ["text", code.slice(at, Math.min(end + 1, code.length))];
}

function token(code, at, language) {
  WORD.lastIndex = at;
  const word = WORD.exec(code)?.[0];
  if (word) {
    const isKnown = language.words.has(language.anyCase ? word.toLowerCase() : word);
    const isCall = code[at + word.length] === "(";
    return [isKnown ? "word" : isCall ? "call" : null, word];
  }
  NUMBER.lastIndex = at;
  const number = NUMBER.exec(code)?.[0];
  return number ? ["number", number] : [null, String.fromCodePoint(code.codePointAt(at))];
}

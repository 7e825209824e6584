//! The table of pre-tokenizers: expressions first, then the names that use them. Data only.

use super::{Rule, Spelling, Words};

const GPT2: &str = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+";
const LLAMA3: &str = concat!(
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*",
    r"|\s*[\r\n]+|\s+(?!\S)|\s+",
);
const QWEN2: &str = concat!(
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*",
    r"|\s*[\r\n]+|\s+(?!\S)|\s+",
);
const QWEN35: &str = concat!(
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}",
    r"| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
);
const MINICPM5: &str = concat!(
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}+| ?[^\s\p{L}\p{N}]+[\r\n]*",
    r"|\s*[\r\n]+|\s+(?!\S)|\s+",
);
const UFAKZEKA: &str = r"[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
const BAILING: &str = concat!(
    r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]",
    r"|\s+(?!\S)|\s+",
);
const SEED: &str = concat!(
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}\r\n]+",
    r"|\s*[\r\n]+|\s+(?!\S)|\s+",
);
const EXAONE_MOE: &str = concat!(
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?(?:\p{L}\p{M}*(?: \p{L}\p{M}*)*)+|\p{N}",
    r"| ?[^\s\p{L}\p{N}]+[\r\n/]?|\s*[\r\n]|\s+(?!\S)|\s+",
);
const JAIS2: &str = concat!(
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*",
    r"|\s*[\r\n]+|\s{512}(?!\S)|\s{256}(?!\S)|\s{128}(?!\S)|\s{64}(?!\S)|\s{32}(?!\S)",
    r"|\s{16}(?!\S)|\s{8}(?!\S)|\s{4}(?!\S)|\s{1,2}(?!\S)|\s{1}",
);
const TEKKEN: &str = concat!(
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+",
    r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*|\p{N}",
    r"| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+",
);
const GPT4O: &str = concat!(
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+",
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?",
    r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*",
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?",
    r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+",
);
const KIMI: &str = concat!(
    r"[\p{Han}]+",
    r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]*",
    r"[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?",
    r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]+",
    r"[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?",
    r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
);
const YOUTU_WORDS: &str = concat!(
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+",
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?",
    r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*",
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?",
    r"|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+",
);
const YOUTU_SCRIPTS: &str = concat!(
    r"[\u{AC00}-\u{D7A3}\u{3131}-\u{318E}]+|",
    r"[\u{FF01}\u{2026}\u{201C}\u{201D}\u{2018}\u{2019}\u{2014}\u{FF1A}\u{FF1B}\u{FF0C}",
    r"\u{3001}-\u{303F}\u{FE30}-\u{FE4F}]+|",
    r"[\u{3105}-\u{312F}]+|",
    r"[\u{4E00}-\u{9FA5}\u{3040}-\u{309F}\u{30A0}-\u{30FF}]+",
);
const BLOOM: &str = r" ?[^(\s|.,!?…。，、।۔،)]+";
const DIGIT: &str = r"\p{N}";
const DIGITS3: &str = r"\p{N}{1,3}";
const LINES: &str = r"[^\n]+|\n+";
const HAN_KANA: &str = r"[一-龥\u{3040}-ゟ゠-ヿ]+";
const DEEPSEEK3: &str = concat!(
    r##"[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+"##,
    r"| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
);
const SPARK: &str = concat!(
    r##"[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+"##,
    r"| ?[\p{P}\p{S}]+|[\r\n]|\s+(?!\S)|\s+",
);
/// The cased letters of Unicode 13, as the model's own file lists them.
const DEEPSEEK_LETTERS: &str = concat!(
    r"\s?[A-Za-z\u{B5}\u{C0}-\u{D6}\u{D8}-\u{F6}\u{F8}-\u{1BA}\u{1BC}-\u{1BF}\u{1C4}-\u{293}\u{295}-\u{2AF}",
    r"\u{370}-\u{373}\u{376}\u{377}\u{37B}-\u{37D}\u{37F}\u{386}\u{388}-\u{38A}\u{38C}\u{38E}-\u{3A1}",
    r"\u{3A3}-\u{3F5}\u{3F7}-\u{481}\u{48A}-\u{52F}\u{531}-\u{556}\u{10A0}-\u{10C5}\u{13A0}-\u{13F5}",
    r"\u{13F8}-\u{13FD}\u{1C90}-\u{1CBA}\u{1CBD}-\u{1CBF}\u{1D00}-\u{1D2B}\u{1D6B}-\u{1D77}\u{1D79}-\u{1D9A}",
    r"\u{1E00}-\u{1F15}\u{1F18}-\u{1F1D}\u{1F20}-\u{1F45}\u{1F48}-\u{1F4D}\u{1F50}-\u{1F57}\u{1F59}",
    r"\u{1F5B}\u{1F5D}\u{1F5F}-\u{1F7D}\u{1F80}-\u{1FB4}\u{1FB6}-\u{1FBC}\u{1FBE}\u{1FC2}-\u{1FC4}",
    r"\u{1FC6}-\u{1FCC}\u{1FD0}-\u{1FD3}\u{1FD6}-\u{1FDB}\u{1FE0}-\u{1FEC}\u{1FF2}-\u{1FF4}\u{1FF6}-\u{1FFC}",
    r"\u{2102}\u{2107}\u{210A}-\u{2113}\u{2115}\u{2119}-\u{211D}\u{2124}\u{2126}\u{2128}\u{212A}-\u{212D}",
    r"\u{212F}-\u{2134}\u{2139}\u{213C}-\u{213F}\u{2145}-\u{2149}\u{214E}\u{2183}\u{2184}\u{2C00}-\u{2C7B}",
    r"\u{2C7E}-\u{2CE4}\u{2CEB}-\u{2CEE}\u{2CF2}\u{2CF3}\u{A640}-\u{A66D}\u{A680}-\u{A69B}\u{A722}-\u{A76F}",
    r"\u{A771}-\u{A787}\u{A78B}-\u{A78E}\u{AB70}-\u{ABBF}\u{FB00}-\u{FB06}\u{FB13}-\u{FB17}\u{FF21}-\u{FF3A}",
    r"\u{FF41}-\u{FF5A}\u{10400}-\u{1044F}\u{104B0}-\u{104D3}\u{104D8}-\u{104FB}\u{10C80}-\u{10CB2}",
    r"\u{10CC0}-\u{10CF2}\u{118A0}-\u{118DF}\u{1E900}-\u{1E943}]+",
);

pub(super) static TABLE: &[Rule] = &[
    Rule {
        names: &[
            "llama3",
            "llama-v3",
            "llama-bpe",
            "falcon3",
            "falcon-h1",
            "pixtral",
            "midm-2.0",
            "lfm2",
            "jina-v5-nano",
        ],
        patterns: &[LLAMA3],
        words: Words::Whole,
        spelling: Spelling::ByteLevel,
        add_bos: true,
    },
    Rule {
        names: &["dbrx", "smaug-bpe", "chatglm-bpe"],
        patterns: &[LLAMA3],
        words: Words::Merged,
        spelling: Spelling::ByteLevel,
        add_bos: false,
    },
    Rule {
        names: &["glm4", "glm5"],
        patterns: &[LLAMA3],
        words: Words::Whole,
        spelling: Spelling::ByteLevel,
        add_bos: false,
    },
    Rule {
        names: &["minicpm5"],
        patterns: &[DIGITS3, MINICPM5],
        words: Words::Whole,
        spelling: Spelling::ByteLevel,
        add_bos: false,
    },
    Rule {
        names: &["jais-2"],
        patterns: &[JAIS2],
        words: Words::Merged,
        spelling: Spelling::ByteLevel,
        add_bos: false,
    },
    Rule {
        names: &["deepseek-llm"],
        patterns: &[
            r"[\r\n]",
            DEEPSEEK_LETTERS,
            r"\s?[!-/:-~\u{FF01}-\u{FF0F}\u{FF1A}-\u{FF5E}\u{2018}-\u{201F}\u{3000}-\u{3002}]+",
            r"\s+$",
            r"[\u{4E00}-\u{9FA5}\u{800}-\u{4E00}\u{AC00}-\u{D7FF}]+",
            r"\p{N}+",
        ],
        words: Words::Merged,
        spelling: Spelling::ByteLevel,
        add_bos: false,
    },
    Rule {
        names: &["deepseek-coder"],
        patterns: &[
            r"[\r\n]",
            r"\s?\p{L}+",
            r"\s?\p{P}+",
            r"[\u{4E00}-\u{9FA5}\u{800}-\u{4E00}\u{AC00}-\u{D7FF}]+",
            DIGIT,
        ],
        words: Words::Merged,
        spelling: Spelling::ByteLevel,
        add_bos: false,
    },
    Rule {
        names: &["deepseek-v3", "hunyuan-dense", "joyai-llm", "hy_v4"],
        patterns: &[DIGITS3, HAN_KANA, DEEPSEEK3],
        words: Words::Merged,
        spelling: Spelling::ByteLevel,
        add_bos: false,
    },
    Rule {
        names: &["spark2_5"],
        patterns: &[DIGITS3, HAN_KANA, SPARK],
        words: Words::Merged,
        spelling: Spelling::ByteLevel,
        add_bos: false,
    },
    Rule {
        names: &["youtu"],
        patterns: &[YOUTU_SCRIPTS, YOUTU_WORDS],
        words: Words::Whole,
        spelling: Spelling::ByteLevel,
        add_bos: false,
    },
    Rule {
        names: &["falcon"],
        patterns: &[r"[\p{P}\$\+<=>\^~\|`]+", GPT2, r"[0-9][0-9][0-9]"],
        words: Words::Merged,
        spelling: Spelling::ByteLevel,
        add_bos: false,
    },
    Rule {
        names: &[
            "starcoder",
            "refact",
            "command-r",
            "smollm",
            "codeshell",
            "exaone",
            "minerva-7b",
            "mellum2",
        ],
        patterns: &[DIGIT, GPT2],
        words: Words::Merged,
        spelling: Spelling::ByteLevel,
        add_bos: false,
    },
    Rule {
        names: &[
            "gpt-2",
            "phi-2",
            "jina-es",
            "jina-de",
            "gigachat",
            "jina-v2-es",
            "jina-v2-de",
            "a.x-4.0",
            "mellum",
            "modern-bert",
            "mpt",
            "olmo",
            "jais",
            "trillion",
            "granite-docling",
            "exaone4",
            "jina-v1-en",
            "jina-v2-code",
            "roberta-bpe",
        ],
        patterns: &[GPT2],
        words: Words::Merged,
        spelling: Spelling::ByteLevel,
        add_bos: false,
    },
    Rule {
        names: &[
            "qwen2",
            "deepseek-r1-qwen",
            "kormo",
            "f2llmv2",
            "stablelm2",
            "hunyuan",
            "solar-open",
            "megrez",
            "grok-2",
        ],
        patterns: &[QWEN2],
        words: Words::Merged,
        spelling: Spelling::ByteLevel,
        add_bos: false,
    },
    Rule {
        names: &["qwen35"],
        patterns: &[QWEN35],
        words: Words::Merged,
        spelling: Spelling::ByteLevel,
        add_bos: false,
    },
    Rule {
        names: &["poro-chat", "bloom", "gpt3-finnish"],
        patterns: &[BLOOM],
        words: Words::Merged,
        spelling: Spelling::ByteLevel,
        add_bos: false,
    },
    Rule {
        names: &["viking"],
        patterns: &[BLOOM, DIGIT],
        words: Words::Merged,
        spelling: Spelling::ByteLevel,
        add_bos: false,
    },
    Rule {
        names: &["tekken"],
        patterns: &[TEKKEN],
        words: Words::Whole,
        spelling: Spelling::ByteLevel,
        add_bos: true,
    },
    Rule {
        names: &["gpt-4o", "llama4", "kanana2", "talkie", "minimax-m2"],
        patterns: &[GPT4O],
        words: Words::Merged,
        spelling: Spelling::ByteLevel,
        add_bos: false,
    },
    Rule {
        names: &["kimi-k2"],
        patterns: &[KIMI],
        words: Words::Merged,
        spelling: Spelling::ByteLevel,
        add_bos: false,
    },
    Rule {
        names: &["granite-embed-multi-97m"],
        patterns: &[GPT4O],
        words: Words::Whole,
        spelling: Spelling::ByteLevel,
        add_bos: false,
    },
    Rule {
        names: &["tiny_aya", "cohere2moe"],
        patterns: &[r"\d{1,3}(?=(?:\d{3})*\b)", GPT4O],
        words: Words::Merged,
        spelling: Spelling::ByteLevel,
        add_bos: false,
    },
    Rule {
        names: &["superbpe"],
        patterns: &[r"\p{N}+", r"(?=(\d{3})+(?!\d))"],
        words: Words::Merged,
        spelling: Spelling::ByteLevel,
        add_bos: false,
    },
    Rule {
        names: &["bailingmoe", "bailingmoe2", "llada-moe"],
        patterns: &[BAILING],
        words: Words::Merged,
        spelling: Spelling::ByteLevel,
        add_bos: false,
    },
    Rule {
        names: &["seed-coder"],
        patterns: &[SEED],
        words: Words::Merged,
        spelling: Spelling::ByteLevel,
        add_bos: false,
    },
    Rule {
        names: &["ufakzeka"],
        patterns: &[UFAKZEKA],
        words: Words::Merged,
        spelling: Spelling::ByteLevel,
        add_bos: false,
    },
    Rule {
        names: &["exaone-moe"],
        patterns: &[EXAONE_MOE],
        words: Words::Merged,
        spelling: Spelling::ByteLevel,
        add_bos: false,
    },
    Rule {
        names: &["laguna"],
        patterns: &[LINES, QWEN2],
        words: Words::Merged,
        spelling: Spelling::ByteLevel,
        add_bos: false,
    },
    Rule {
        names: &["gemma4", "granite-embed-multi-311m"],
        patterns: &[LINES],
        words: Words::Merged,
        spelling: Spelling::Sentence,
        add_bos: true,
    },
    Rule {
        names: &["sarvam-moe"],
        patterns: &[LINES],
        words: Words::Merged,
        spelling: Spelling::Sentence,
        add_bos: false,
    },
    Rule {
        names: &["chameleon"],
        patterns: &[
            r"<sentinel:[0-9]+>",
            r"IMGIMG[A-I]{1,4}Z",
            r"[\t\n]|    |  ",
            DIGIT,
            r"[\p{P}!-/:-@\[-`{-~]",
            GPT2,
        ],
        words: Words::Merged,
        spelling: Spelling::ByteLevel,
        add_bos: true,
    },
    Rule {
        names: &["default", ""],
        patterns: &[r"[\p{P}\$\+<=>\^~\|]+", GPT2, r"\p{N}+", r"[0-9][0-9][0-9]"],
        words: Words::Merged,
        spelling: Spelling::ByteLevel,
        add_bos: false,
    },
];

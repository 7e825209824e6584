//! Where chat templates are kept: `tokenizer_config.json`, `chat_template.jinja`, or the metadata of a GGUF
//! file. A checkpoint may have several under different names.

use std::collections::BTreeMap;
use std::path::Path;

use serde_json::Value;

use super::{ChatRequest, ChatTemplate};
use crate::error::{Error, Result};
use crate::files;

/// The templates of one checkpoint by name.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ChatTemplates {
    sources: BTreeMap<String, String>,
}

/// Which of several templates to use.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum TemplateChoice<'a> {
    #[default]
    Default,
    /// The one made for tools where there is one, the default otherwise.
    ToolUse,
    Named(&'a str),
}

impl TemplateChoice<'_> {
    /// What transformers chooses when nobody does: the template for tools where the request has some.
    pub fn for_request(request: &ChatRequest) -> Self {
        let has_tools = request.tools.as_ref().is_some_and(|tools| !tools.is_empty());
        if has_tools { Self::ToolUse } else { Self::Default }
    }
}

const DEFAULT: &str = "default";
const TOOL_USE: &str = "tool_use";

impl ChatTemplates {
    /// The templates of a checkpoint folder; empty when it has none. A file `chat_template.jinja` comes
    /// before what `tokenizer_config.json` says, and `additional_chat_templates/NAME.jinja` adds named ones.
    pub fn from_folder(folder: &Path) -> Result<Self> {
        let mut templates = Self::default();
        let path = folder.join("tokenizer_config.json");
        if let Some(config) = files::read_optional_object(&path)? {
            templates.add_configured(config.get("chat_template"), &path)?;
        }
        let path = folder.join("chat_template.jinja");
        if let Some(source) = read_template(&path)? {
            templates.sources.insert(DEFAULT.to_owned(), source);
        }
        templates.add_folder(&folder.join("additional_chat_templates"))?;
        Ok(templates)
    }

    /// The templates of a GGUF file: `tokenizer.chat_template`, and each `tokenizer.chat_template.NAME`.
    pub fn from_gguf(default: Option<String>, named: impl IntoIterator<Item = (String, String)>) -> Self {
        let mut sources: BTreeMap<String, String> = named.into_iter().collect();
        sources.extend(default.map(|source| (DEFAULT.to_owned(), source)));
        Self { sources }
    }

    pub fn is_empty(&self) -> bool {
        self.sources.is_empty()
    }

    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.sources.keys().map(String::as_str)
    }

    /// A template's text.
    pub fn source(&self, choice: TemplateChoice) -> Result<&str> {
        if self.is_empty() {
            return Err(Error::NoTemplate);
        }
        let tool_use = self.sources.get(TOOL_USE).filter(|_| choice == TemplateChoice::ToolUse);
        let name = match choice {
            TemplateChoice::Named(name) => name,
            TemplateChoice::Default | TemplateChoice::ToolUse => DEFAULT,
        };
        let found = tool_use.or_else(|| self.sources.get(name));
        found.map(String::as_str).ok_or_else(|| Error::UnknownTemplate {
            name: name.to_owned(),
            available: self.names().collect::<Vec<_>>().join(", "),
        })
    }

    /// Compiles a template; `tokens` as in [`ChatTemplate::new`].
    pub fn compile(&self, choice: TemplateChoice, tokens: &BTreeMap<String, String>) -> Result<ChatTemplate> {
        ChatTemplate::new(self.source(choice)?, tokens)
    }

    /// `chat_template` is one template, a list of objects with `name` and `template`, or an object of named ones.
    fn add_configured(&mut self, configured: Option<&Value>, path: &Path) -> Result<()> {
        let wrong = || Error::Field {
            path: path.to_owned(),
            field: "chat_template",
            expected: "a text, a list of objects with `name` and `template`, or an object of texts",
        };
        match configured {
            None | Some(Value::Null) => {}
            Some(Value::String(source)) => {
                self.sources.insert(DEFAULT.to_owned(), source.clone());
            }
            Some(Value::Array(entries)) => {
                for entry in entries {
                    let text = |field| entry.get(field).and_then(Value::as_str).ok_or_else(wrong);
                    self.sources.insert(text("name")?.to_owned(), text("template")?.to_owned());
                }
            }
            Some(Value::Object(named)) => {
                for (name, template) in named {
                    let template = template.as_str().ok_or_else(wrong)?;
                    self.sources.insert(name.clone(), template.to_owned());
                }
            }
            Some(_) => return Err(wrong()),
        }
        Ok(())
    }

    fn add_folder(&mut self, folder: &Path) -> Result<()> {
        let read_error = |source| Error::Read { path: folder.to_owned(), source };
        let entries = match std::fs::read_dir(folder) {
            Ok(entries) => entries,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(()),
            Err(error) => return Err(read_error(error)),
        };
        for entry in entries {
            let path = entry.map_err(read_error)?.path();
            let name =
                path.file_name().and_then(|name| name.to_str()).and_then(|name| name.strip_suffix(".jinja"));
            if let (Some(name), Some(source)) = (name, read_template(&path)?) {
                self.sources.insert(name.to_owned(), source);
            }
        }
        Ok(())
    }
}

fn read_template(path: &Path) -> Result<Option<String>> {
    let Some(bytes) = files::read_optional(path, files::CONFIG_LIMIT)? else { return Ok(None) };
    let source = String::from_utf8(bytes).map_err(|error| Error::Read {
        path: path.to_owned(),
        source: std::io::Error::new(std::io::ErrorKind::InvalidData, error),
    })?;
    Ok(Some(source))
}

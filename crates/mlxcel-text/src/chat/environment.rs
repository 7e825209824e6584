//! The Jinja environment of chat templates: the one transformers sets up, on minijinja, with bounds on how
//! long a template may run and how much it may write.

use std::fmt;
use std::io::{self, Write};
use std::time::SystemTime;

use jiff::Zoned;
use jiff::fmt::strtime;
use jiff::tz::TimeZone;
use minijinja::syntax::SyntaxConfig;
use minijinja::value::Value;
use minijinja::{Environment, Error as JinjaError, ErrorKind};

use super::{bounded, generation, json, meter, methods};
use crate::error::{Error, Result};

const NAME: &str = "chat_template";
/// Thousands of messages with tools stay far below this; it is reached in about a second.
const INSTRUCTIONS_MAX: u64 = 20_000_000;
/// A rendered prompt is as long as its messages.
const OUTPUT_BYTES_MAX: usize = 256 << 20;
/// Macros that call themselves end here, long before the thread's stack does.
const RECURSION_MAX: usize = 200;

pub(super) fn compile(source: &str) -> Result<Environment<'static>> {
    let mut environment = Environment::new();
    let syntax = SyntaxConfig::builder().trim_blocks(true).lstrip_blocks(true).build();
    environment.set_syntax(syntax.map_err(|error| explain(&error))?);
    environment.set_debug(false);
    environment.set_fuel(Some(INSTRUCTIONS_MAX));
    environment.set_recursion_limit(RECURSION_MAX);
    environment.set_auto_escape_callback(|_| minijinja::AutoEscape::None);
    environment.set_unknown_method_callback(methods::call);
    environment.add_filter(meter::READ, meter::read);
    environment.add_filter(meter::TIMES, meter::times);
    bounded::add_filters(&mut environment);
    environment.add_filter("tojson", json::tojson);
    environment.add_test("iterable", is_iterable);
    environment.add_function("raise_exception", raise_exception);
    environment
        .add_template_owned(NAME, meter::rewrite(&generation::rewrite(source)))
        .map_err(|error| Error::TemplateSyntax { line: error.line().unwrap_or(0), reason: reason(&error) })?;
    Ok(environment)
}

pub(super) fn render(environment: &Environment, context: Value) -> Result<String> {
    let template = environment.get_template(NAME).map_err(|error| explain(&error))?;
    let mut output = BoundedOutput { bytes: Vec::new(), overflowed: false };
    let rendered = template.render_captured_to(context, &mut output);
    if output.overflowed {
        return Err(Error::TemplateOutputTooLong { limit: OUTPUT_BYTES_MAX });
    }
    rendered.map_err(|error| explain(&error))?;
    Ok(String::from_utf8(output.bytes).expect("minijinja writes whole strings"))
}

/// The function `strftime_now(format)`.
pub(super) fn strftime_now(now: Option<SystemTime>) -> Value {
    Value::from_function(move |format: &str| -> std::result::Result<String, JinjaError> {
        let failed = |error: jiff::Error| JinjaError::new(ErrorKind::InvalidOperation, error.to_string());
        let time = match now {
            None => Zoned::now(),
            Some(now) => jiff::Timestamp::try_from(now).map_err(failed)?.to_zoned(TimeZone::UTC),
        };
        strtime::format(format, &time).map_err(failed)
    })
}

/// In Python `none` is not iterable; templates use the test to tell absent tools from a list.
fn is_iterable(value: &Value) -> bool {
    !value.is_none() && value.try_iter().is_ok()
}

/// What a template says with `raise_exception`.
#[derive(Debug)]
struct Raised(String);

impl fmt::Display for Raised {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Raised {}

fn raise_exception(message: String) -> std::result::Result<Value, JinjaError> {
    Err(JinjaError::new(ErrorKind::InvalidOperation, message.clone()).with_source(Raised(message)))
}

fn explain(error: &JinjaError) -> Error {
    let mut cause: Option<&(dyn std::error::Error + 'static)> = Some(error);
    while let Some(current) = cause {
        if let Some(Raised(message)) = current.downcast_ref() {
            return Error::TemplateRaised { message: message.clone() };
        }
        if current.downcast_ref::<meter::Exhausted>().is_some() {
            return Error::TemplateOutOfMemory { bytes: meter::BYTES_READ_MAX };
        }
        if current.downcast_ref::<JinjaError>().is_some_and(|error| error.kind() == ErrorKind::OutOfFuel) {
            return Error::TemplateOutOfFuel { instructions: INSTRUCTIONS_MAX };
        }
        cause = current.source();
    }
    Error::TemplateRender { line: error.line().unwrap_or(0), reason: reason(error) }
}

fn reason(error: &JinjaError) -> String {
    match error.detail() {
        Some(detail) => format!("{}: {detail}", error.kind()),
        None => error.kind().to_string(),
    }
}

struct BoundedOutput {
    bytes: Vec<u8>,
    overflowed: bool,
}

impl Write for BoundedOutput {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if self.bytes.len() + bytes.len() > OUTPUT_BYTES_MAX {
            self.overflowed = true;
            return Err(io::Error::other("the output bound is reached"));
        }
        self.bytes.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

//! A request that is not answered: the status, what happened, and the shape that each interface gives it. It does not
//! know the routes; who answers says which interface was spoken.

use axum::Json;
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use serde_json::{Value, json};

/// The interface a client speaks, by which errors have their shape.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Dialect {
    OpenAi,
    Anthropic,
    Llama,
}

impl Dialect {
    /// By the path alone, so that a wrong key or an unknown route is answered in the right shape, too.
    pub fn of(path: &str) -> Self {
        match path {
            path if path.starts_with("/v1/messages") => Dialect::Anthropic,
            path if path.starts_with("/v1/") => Dialect::OpenAi,
            _ => Dialect::Llama,
        }
    }
}

/// What kind of thing went wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Invalid,
    Unauthorized,
    Forbidden,
    NotFound,
    MethodNotAllowed,
    TooLarge,
    MediaType,
    Timeout,
    /// The answer took longer than the server allows.
    Deadline,
    /// The queue is full.
    Busy,
    /// Not now: loading, ending, or restarting.
    Unavailable,
    Internal,
}

impl Kind {
    pub fn status(self) -> StatusCode {
        match self {
            Kind::Invalid => StatusCode::BAD_REQUEST,
            Kind::Unauthorized => StatusCode::UNAUTHORIZED,
            Kind::Forbidden => StatusCode::FORBIDDEN,
            Kind::NotFound => StatusCode::NOT_FOUND,
            Kind::MethodNotAllowed => StatusCode::METHOD_NOT_ALLOWED,
            Kind::TooLarge => StatusCode::PAYLOAD_TOO_LARGE,
            Kind::MediaType => StatusCode::UNSUPPORTED_MEDIA_TYPE,
            Kind::Timeout => StatusCode::REQUEST_TIMEOUT,
            Kind::Deadline => StatusCode::GATEWAY_TIMEOUT,
            Kind::Busy => StatusCode::TOO_MANY_REQUESTS,
            Kind::Unavailable => StatusCode::SERVICE_UNAVAILABLE,
            Kind::Internal => StatusCode::INTERNAL_SERVER_ERROR,
        }
    }

    fn openai(self) -> &'static str {
        match self {
            Kind::Unauthorized => "authentication_error",
            Kind::Forbidden => "permission_error",
            Kind::Busy => "rate_limit_error",
            Kind::Unavailable | Kind::Deadline | Kind::Internal => "server_error",
            _ => "invalid_request_error",
        }
    }

    fn anthropic(self) -> &'static str {
        match self {
            Kind::Unauthorized => "authentication_error",
            Kind::Forbidden => "permission_error",
            Kind::NotFound => "not_found_error",
            Kind::TooLarge => "request_too_large",
            Kind::Busy => "rate_limit_error",
            Kind::Unavailable => "overloaded_error",
            Kind::Deadline | Kind::Internal => "api_error",
            _ => "invalid_request_error",
        }
    }

    fn llama(self) -> &'static str {
        match self {
            Kind::Unauthorized => "authentication_error",
            Kind::Forbidden => "permission_error",
            Kind::NotFound => "not_found_error",
            Kind::Busy | Kind::Unavailable => "unavailable_error",
            Kind::Deadline | Kind::Internal => "server_error",
            _ => "invalid_request_error",
        }
    }
}

/// Why a request is not answered.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct Refusal {
    pub kind: Kind,
    pub message: String,
    /// The field that is to blame, as a path.
    pub param: Option<String>,
    /// A word for programs, where the interface has one.
    pub code: Option<&'static str>,
}

impl Refusal {
    pub fn new(kind: Kind, message: impl Into<String>) -> Self {
        Refusal { kind, message: message.into(), param: None, code: None }
    }

    /// A field that cannot be honoured.
    pub fn field(param: impl Into<String>, message: impl Into<String>) -> Self {
        Refusal { param: Some(param.into()), ..Self::new(Kind::Invalid, message) }
    }

    /// An unexpected failure; what it was goes to the log, too.
    pub fn internal(message: impl Into<String>) -> Self {
        Self::new(Kind::Internal, message)
    }

    pub fn with_code(self, code: &'static str) -> Self {
        Refusal { code: Some(code), ..self }
    }

    /// The error as the interface has it.
    pub fn body(&self, dialect: Dialect) -> Value {
        let Refusal { kind, message, param, code } = self;
        match dialect {
            Dialect::OpenAi => {
                json!({"error": {"message": message, "type": kind.openai(), "param": param, "code": code}})
            }
            Dialect::Anthropic => {
                json!({"type": "error", "error": {"type": kind.anthropic(), "message": message}})
            }
            Dialect::Llama => {
                let code = kind.status().as_u16();
                json!({"error": {"code": code, "message": message, "type": kind.llama(), "param": param}})
            }
        }
    }

    pub fn respond(&self, dialect: Dialect) -> Response {
        let mut response = (self.kind.status(), Json(self.body(dialect))).into_response();
        let headers = response.headers_mut();
        match self.kind {
            Kind::Busy | Kind::Unavailable => {
                headers.insert(header::RETRY_AFTER, HeaderValue::from_static("1"));
            }
            Kind::Unauthorized => {
                headers.insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
            }
            // What is left of the body is not read, so the connection cannot go on.
            Kind::TooLarge | Kind::Timeout => {
                headers.insert(header::CONNECTION, HeaderValue::from_static("close"));
            }
            _ => {}
        }
        response
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_has_the_shape_of_its_interface() {
        let refusal = Refusal::field("max_tokens", "too many").with_code("invalid_value");
        assert_eq!(
            refusal.body(Dialect::of("/v1/chat/completions")),
            json!({"error": {"message": "too many", "type": "invalid_request_error", "param": "max_tokens",
                             "code": "invalid_value"}})
        );
        assert_eq!(
            refusal.body(Dialect::of("/v1/messages/count_tokens")),
            json!({"type": "error", "error": {"type": "invalid_request_error", "message": "too many"}})
        );
        assert_eq!(refusal.body(Dialect::of("/completion"))["error"]["code"], 400);
    }
}

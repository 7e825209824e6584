//! A response told as numbered events.

use std::sync::Arc;

use serde_json::{Value, json};

use super::building::Building;
use crate::app::App;
use crate::generate::{Generation, Shown};
use crate::refusal::{Dialect, Refusal};
use crate::sse::{Events, Script};

pub struct Telling {
    app: Arc<App>,
    /// `None` once it is finished.
    building: Option<Building>,
    is_kept: bool,
    /// The next event's number.
    number: u64,
}

impl Telling {
    pub fn new(app: Arc<App>, building: Building, is_kept: bool) -> Self {
        Telling { app, building: Some(building), is_kept, number: 0 }
    }
}

/// Writes an event with its name and number among its fields.
fn tell(events: &mut Events, number: &mut u64, name: &'static str, mut fields: Value) {
    fields["type"] = json!(name);
    fields["sequence_number"] = json!(*number);
    *number += 1;
    events.event(name, &fields);
}

impl Script for Telling {
    const DIALECT: Dialect = Dialect::OpenAi;

    fn begin(&mut self, _: &Generation, events: &mut Events) {
        let Some(building) = &self.building else { return };
        let response = building.response("in_progress", None);
        for name in ["response.created", "response.in_progress"] {
            tell(events, &mut self.number, name, json!({"response": response}));
        }
    }

    fn show(&mut self, shown: Shown, _: &Generation, events: &mut Events) {
        let number = &mut self.number;
        if let Some(building) = &mut self.building {
            building.add(shown.piece, &mut |name, fields| tell(events, number, name, fields));
        }
    }

    fn end(&mut self, generation: &Generation, events: &mut Events) {
        let Some(building) = self.building.take() else { return };
        let number = &mut self.number;
        let finished =
            building.finish(&generation.usage, &mut |name, fields| tell(events, number, name, fields));
        if self.is_kept {
            self.app.responses.keep(finished);
        }
    }

    fn fail(&mut self, refusal: &Refusal, events: &mut Events) {
        let Refusal { message, param, code, .. } = refusal;
        let code = code.unwrap_or("server_error");
        tell(events, &mut self.number, "error", json!({"code": code, "message": message, "param": param}));
    }
}

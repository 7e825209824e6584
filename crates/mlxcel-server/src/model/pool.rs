//! The models in memory: loaded when first asked for, by one load however many ask, and dropped when others need the
//! room or nobody has asked for long. It does not know how a model is loaded.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use tokio::sync::watch;

use super::{Card, Model, Source};
use crate::metrics::Metrics;
use crate::refusal::{Kind, Refusal};

/// How many models are kept, and for how long.
#[derive(Clone, Debug)]
pub struct Keeping {
    pub models: usize,
    /// Models that were not asked for so long are dropped.
    pub idle_time: Option<Duration>,
    pub first: First,
}

/// When the default model is loaded.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum First {
    /// At once; a server that cannot load it ends.
    #[default]
    AtOnce,
    WhenAsked,
}

impl Default for Keeping {
    fn default() -> Self {
        Keeping { models: 1, idle_time: None, first: First::default() }
    }
}

/// All models of a server.
pub struct Models {
    source: Arc<dyn Source>,
    keeping: Keeping,
    metrics: Arc<Metrics>,
    slots: Mutex<BTreeMap<String, Slot>>,
}

struct Slot {
    state: watch::Receiver<Load>,
    last_used: Instant,
}

#[derive(Clone)]
enum Load {
    Loading,
    Ready(Arc<Model>),
    Failed(Refusal),
}

/// How a model stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Standing {
    Unloaded,
    Loading,
    Ready,
    /// Loaded, but its engine is being started anew.
    Down,
}

impl Models {
    pub fn new(source: Arc<dyn Source>, keeping: Keeping, metrics: Arc<Metrics>) -> Self {
        Models { source, keeping, metrics, slots: Mutex::default() }
    }

    pub fn cards(&self) -> Vec<Card> {
        self.source.cards()
    }

    /// The model of a name, or the default one. Loads it if it must.
    pub async fn get(self: &Arc<Self>, name: Option<&str>) -> Result<Arc<Model>, Refusal> {
        let id = self.resolve(name)?;
        let mut state = self.join_or_load(&id)?;
        let loaded = state.wait_for(|load| !matches!(load, Load::Loading)).await;
        match loaded.map(|load| load.clone()) {
            Ok(Load::Ready(model)) => Ok(model),
            Ok(Load::Failed(refusal)) => Err(refusal),
            Ok(Load::Loading) | Err(_) => Err(Refusal::internal(format!("loading '{id}' was broken off"))),
        }
    }

    fn resolve(&self, name: Option<&str>) -> Result<String, Refusal> {
        let cards = self.source.cards();
        let found = match name {
            None => cards.first(),
            Some(name) => cards.iter().find(|card| card.answers_to(name)),
        };
        found.map(|card| card.id.clone()).ok_or_else(|| unknown(name.unwrap_or_default(), &cards))
    }

    /// Joins a load in progress, or begins one.
    fn join_or_load(self: &Arc<Self>, id: &str) -> Result<watch::Receiver<Load>, Refusal> {
        let mut slots = self.slots();
        if let Some(slot) = slots.get_mut(id) {
            slot.last_used = Instant::now();
            return Ok(slot.state.clone());
        }
        let dropped = self.make_room(&mut slots)?;
        let (sender, state) = watch::channel(Load::Loading);
        slots.insert(id.to_string(), Slot { state: state.clone(), last_used: Instant::now() });
        drop(slots);
        let (models, id) = (Arc::clone(self), id.to_string());
        // A thread of its own, since loading blocks, and goes on whether or not the client who asked stays.
        tokio::task::spawn_blocking(move || {
            drop(dropped);
            models.load(&id, &sender);
        });
        Ok(state)
    }

    fn load(&self, id: &str, sender: &watch::Sender<Load>) {
        let started = Instant::now();
        tracing::info!(model = id, "loading");
        let load = || {
            let parts = self.source.load(id).map_err(|error| error.to_string())?;
            Model::new(id, parts, self.metrics.model(id)).map_err(|error| error.to_string())
        };
        let loaded = std::panic::catch_unwind(std::panic::AssertUnwindSafe(load));
        let outcome = match loaded.unwrap_or_else(|_| Err("loading panicked".to_string())) {
            Ok(model) => {
                tracing::info!(model = id, seconds = started.elapsed().as_secs_f64(), "loaded");
                Load::Ready(Arc::new(model))
            }
            Err(reason) => {
                tracing::error!(model = id, %reason, "loading failed");
                // The next request tries again.
                self.slots().remove(id);
                Load::Failed(Refusal::internal(format!("the model '{id}' cannot be loaded: {reason}")))
            }
        };
        sender.send_replace(outcome);
    }

    /// Takes out the models that nobody uses, the longest unused first, until one more has room.
    fn make_room(&self, slots: &mut BTreeMap<String, Slot>) -> Result<Vec<Slot>, Refusal> {
        let mut dropped = Vec::new();
        while slots.len() >= self.keeping.models.max(1) {
            let idle = slots.iter().filter(|(_, slot)| slot.is_idle()).min_by_key(|(_, slot)| slot.last_used);
            let Some(id) = idle.map(|(id, _)| id.clone()) else {
                let message =
                    "every model in memory is in use, and there is room for no other; try again soon";
                return Err(Refusal::new(Kind::Unavailable, message));
            };
            tracing::info!(model = %id, "unloading, to make room");
            self.metrics.model(&id).is_ready.set(0);
            dropped.extend(slots.remove(&id));
        }
        Ok(dropped)
    }

    /// Drops models that nobody has asked for as long as is allowed.
    pub fn drop_idle(&self) {
        let Some(idle_time) = self.keeping.idle_time else { return };
        let mut slots = self.slots();
        let is_old = |slot: &Slot| slot.is_idle() && slot.last_used.elapsed() >= idle_time;
        let old: Vec<String> = slots.iter().filter(|(_, s)| is_old(s)).map(|(id, _)| id.clone()).collect();
        let dropped: Vec<Option<Slot>> = old.iter().map(|id| slots.remove(id)).collect();
        drop(slots);
        for id in &old {
            tracing::info!(model = %id, "unloading, since nobody asks for it");
            self.metrics.model(id).is_ready.set(0);
        }
        drop(dropped);
    }

    pub fn first(&self) -> First {
        self.keeping.first
    }

    /// How often [`drop_idle`](Self::drop_idle) is worth calling.
    pub fn idle_period(&self) -> Option<Duration> {
        self.keeping.idle_time.map(|time| (time / 4).max(Duration::from_millis(10)))
    }

    pub fn standing(&self, id: &str) -> Standing {
        match self.slots().get(id).map(|slot| slot.state.borrow().clone()) {
            None | Some(Load::Failed(_)) => Standing::Unloaded,
            Some(Load::Loading) => Standing::Loading,
            Some(Load::Ready(model)) if model.is_ready() => Standing::Ready,
            Some(Load::Ready(_)) => Standing::Down,
        }
    }

    /// A model that is in memory.
    pub fn peek(&self, id: &str) -> Option<Arc<Model>> {
        match &*self.slots().get(id)?.state.borrow() {
            Load::Ready(model) => Some(Arc::clone(model)),
            Load::Loading | Load::Failed(_) => None,
        }
    }

    /// Lets go of every model.
    pub fn close(&self) {
        let slots = std::mem::take(&mut *self.slots());
        drop(slots);
    }

    fn slots(&self) -> MutexGuard<'_, BTreeMap<String, Slot>> {
        self.slots.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Slot {
    /// Whether it is loaded and no request holds it.
    fn is_idle(&self) -> bool {
        matches!(&*self.state.borrow(), Load::Ready(model) if Arc::strong_count(model) == 1)
    }
}

fn unknown(name: &str, cards: &[Card]) -> Refusal {
    let shown: String = name.chars().filter(|c| !c.is_control()).take(100).collect();
    let known: Vec<&str> = cards.iter().take(8).map(|card| card.id.as_str()).collect();
    let message = format!("there is no model '{shown}'; there is {}", known.join(", "));
    let refusal = Refusal { param: Some("model".to_string()), ..Refusal::new(Kind::NotFound, message) };
    refusal.with_code("model_not_found")
}

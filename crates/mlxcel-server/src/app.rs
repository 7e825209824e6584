//! What all requests share.

use std::sync::Arc;

use crate::config::Config;
use crate::error::ServerError;
use crate::keys::Keys;
use crate::lifecycle::Lifecycle;
use crate::metrics::Metrics;
use crate::model::{Model, Models, Source};
use crate::refusal::{Kind, Refusal};
use crate::routes::Store;
use crate::trace::Exporter;

pub struct App {
    pub config: Config,
    pub keys: Keys,
    pub metrics: Arc<Metrics>,
    pub models: Arc<Models>,
    pub lifecycle: Lifecycle,
    /// Answers that clients may go on from.
    pub responses: Store,
    /// Where traces go, if they are wanted.
    pub exporter: Option<Arc<Exporter>>,
}

impl App {
    pub fn new(config: Config, source: Arc<dyn Source>) -> Result<Self, ServerError> {
        let metrics = Arc::new(Metrics::default());
        let keys = Keys::new(config.api_keys.clone())?;
        let is_header = |origin: &&String| axum::http::HeaderValue::from_str(origin).is_err();
        if let Some(origin) = config.cors_origins.iter().find(is_header) {
            return Err(ServerError::Origin { origin: origin.clone() });
        }
        let models = Arc::new(Models::new(source, config.keeping.clone(), Arc::clone(&metrics)));
        let responses = Store::new(config.limits.stored);
        let exporter = config.otlp.as_ref().map(Exporter::start).transpose()?.map(Arc::new);
        Ok(App { config, keys, metrics, models, lifecycle: Lifecycle::default(), responses, exporter })
    }

    /// The model that a request names, or the default one, loaded if it must be. The load goes on where the request
    /// may not wait for it any longer.
    pub async fn model(&self, name: Option<&str>) -> Result<Arc<Model>, Refusal> {
        let Some(patience) = self.config.limits.request_time else { return self.models.get(name).await };
        tokio::time::timeout(patience, self.models.get(name)).await.unwrap_or_else(|_| {
            let message =
                "the model is still being loaded, for longer than a request may take; try again later";
            Err(Refusal::new(Kind::Deadline, message))
        })
    }
}

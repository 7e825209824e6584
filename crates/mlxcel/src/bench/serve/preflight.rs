//! Before anything is measured: whether the server can be reached, takes the key, and has the model. Its refusals
//! become sentences that say what to do.

use anyhow::{Result, anyhow, bail};
use serde::Deserialize;

use super::client::Client;
use super::exchange::{Exchange, Outcome};
use super::failure::{Failure, said};

/// Names of models that an error lists.
const LISTED_MAX: usize = 8;

#[derive(Deserialize)]
struct Models {
    data: Vec<Entry>,
}

#[derive(Deserialize)]
struct Entry {
    id: String,
}

/// The models that the server lists; `None` where it has no list.
pub async fn models(client: &Client) -> Result<Option<Vec<String>>> {
    let body = match client.get("/models").await {
        Ok(answer) => answer.whole().await,
        Err(failure) => Err(failure),
    };
    match body {
        Ok(body) => {
            let models = serde_json::from_slice::<Models>(&body).ok();
            Ok(models.map(|models| models.data.into_iter().map(|entry| entry.id).collect()))
        }
        Err(failure @ (Failure::Connect(_) | Failure::Status { status: 401 | 403, .. })) => {
            Err(explain(client, failure))
        }
        Err(_) => Ok(None),
    }
}

/// The name that requests have: the user's, else the first one listed.
pub fn choose(client: &Client, asked: Option<&str>, listed: Option<&[String]>) -> Result<String> {
    match (asked, listed.and_then(<[String]>::first)) {
        (Some(name), _) => Ok(name.to_string()),
        (None, Some(name)) => Ok(name.clone()),
        (None, None) => bail!("{} lists no models; give --model a name", client.address()),
    }
}

/// Sends one request that is not counted.
pub async fn try_out(
    client: &Client,
    trial: &Exchange,
    model: &str,
    listed: Option<&[String]>,
) -> Result<()> {
    let failure = match trial.run(client).await.outcome {
        Outcome::Failed(failure) => failure,
        Outcome::Completed | Outcome::Cancelled => return Ok(()),
    };
    let names_model = |message: &str| message.to_lowercase().contains("model");
    match failure {
        Failure::Status { status: 400 | 404, message } if names_model(&message) => {
            let has = match listed {
                Some(names) if !names.is_empty() => format!("; it lists {}", list(names)),
                _ => String::new(),
            };
            bail!(
                "{} does not answer for the model '{}': {message}{has}; give --model another name",
                client.address(),
                said(model)
            )
        }
        failure => Err(explain(client, failure)),
    }
}

fn list(names: &[String]) -> String {
    let mut shown: Vec<String> = names.iter().take(LISTED_MAX).map(|name| said(name)).collect();
    if names.len() > LISTED_MAX {
        shown.push(format!("{} more", names.len() - LISTED_MAX));
    }
    shown.join(", ")
}

fn explain(client: &Client, failure: Failure) -> anyhow::Error {
    let address = client.address();
    match failure {
        Failure::Connect(cause) => {
            anyhow!("cannot reach {address}: {cause}; start the server, or give --url its address")
        }
        Failure::Status { status: status @ (401 | 403), message } => anyhow!(
            "{address} refuses the key (HTTP {status}: {message}); give --api-key, or set MLXCEL_API_KEY"
        ),
        Failure::Status { status: 404, message } => anyhow!(
            "{address} has no chat completions (HTTP 404: {message}); give --url the address that ends before \
             /chat/completions"
        ),
        Failure::Status { status: status @ 400..=499, message } => anyhow!(
            "{address} refuses a first request (HTTP {status}: {message}); change what --extra and the other flags ask for"
        ),
        failure => anyhow!("{address} did not answer a first request: {failure}; see the server's log"),
    }
}

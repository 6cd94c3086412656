//! Request bodies, parsed with errors that name the field.

use std::collections::BTreeSet;
use std::sync::Arc;

use axum::extract::{FromRequest, Request};
use serde::de::DeserializeOwned;

use crate::api::inert::{Inert, has_no_effect};
use crate::app::App;
use crate::error::{ApiError, cut};
use crate::json;
use crate::receive::receive;

/// A JSON body that deserialises into one struct.
pub struct Body<T>(pub T);

/// The JSON body of a request that generates text. Its fields belong to two structs: the endpoint's own, and the one
/// that several endpoints share. Fields that change nothing ([`Inert`]) are also accepted.
pub struct GenerationBody<A, B>(pub A, pub B);

/// As [`GenerationBody`], for Anthropic's API. A request that names a beta in `anthropic-beta` may have fields that the
/// server does not know, because betas add fields all the time.
pub struct BetaBody<A, B>(pub A, pub B);

/// A JSON body that deserialises into one struct. Fields that change nothing ([`Inert`]) are also accepted.
pub struct OpenBody<T>(pub T);

impl<T: DeserializeOwned> FromRequest<Arc<App>> for OpenBody<T> {
    type Rejection = ApiError;

    async fn from_request(request: Request, app: &Arc<App>) -> Result<Self, ApiError> {
        let bytes = receive(request, app).await?;
        let (fields, unknown) = value(&bytes)?;
        let (Inert, unknown_to_inert) = value(&bytes)?;
        refuse([unknown, unknown_to_inert], &bytes)?;
        Ok(OpenBody(fields))
    }
}

impl<T: DeserializeOwned> FromRequest<Arc<App>> for Body<T> {
    type Rejection = ApiError;

    async fn from_request(request: Request, app: &Arc<App>) -> Result<Self, ApiError> {
        let bytes = receive(request, app).await?;
        let (value, unknown) = value(&bytes)?;
        refuse([unknown], &bytes)?;
        Ok(Body(value))
    }
}

impl<A: DeserializeOwned, B: DeserializeOwned> FromRequest<Arc<App>> for GenerationBody<A, B> {
    type Rejection = ApiError;

    async fn from_request(request: Request, app: &Arc<App>) -> Result<Self, ApiError> {
        let bytes = receive(request, app).await?;
        let (a, b, unknown) = parse_two(&bytes)?;
        refuse(unknown, &bytes)?;
        Ok(GenerationBody(a, b))
    }
}

impl<A: DeserializeOwned, B: DeserializeOwned> FromRequest<Arc<App>> for BetaBody<A, B> {
    type Rejection = ApiError;

    async fn from_request(request: Request, app: &Arc<App>) -> Result<Self, ApiError> {
        let is_beta = request.headers().contains_key("anthropic-beta");
        let bytes = receive(request, app).await?;
        let (a, b, unknown) = parse_two(&bytes)?;
        match refuse(unknown, &bytes) {
            Err(error) if is_beta => {
                tracing::debug!(field = error.param, "ignored an unknown field, which may belong to a beta")
            }
            known => known?,
        }
        Ok(BetaBody(a, b))
    }
}

/// Parses a body into two structs. Also returns the fields that each of them and [`Inert`] do not know.
fn parse_two<A: DeserializeOwned, B: DeserializeOwned>(
    bytes: &[u8],
) -> Result<(A, B, [BTreeSet<String>; 3]), ApiError> {
    let (a, unknown_to_a) = value(bytes)?;
    let (b, unknown_to_b) = value(bytes)?;
    let (Inert, unknown_to_inert) = value(bytes)?;
    Ok((a, b, [unknown_to_a, unknown_to_b, unknown_to_inert]))
}

fn value<T: DeserializeOwned>(bytes: &[u8]) -> Result<(T, BTreeSet<String>), ApiError> {
    json::parse(bytes).map_err(ApiError::from)
}

/// Refuses the first field of the body that no struct knows. `unknown` holds the unknown fields of each struct.
fn refuse<const N: usize>(unknown: [BTreeSet<String>; N], body: &[u8]) -> Result<(), ApiError> {
    let by_all = |path: &&String| unknown.iter().all(|paths| is_within(path, paths));
    match unknown.iter().flatten().filter(by_all).find(|path| !has_no_effect(path, body)) {
        Some(field) => {
            let field = cut(field);
            Err(ApiError::field(&field, format!("the field {field:?} is not supported")))
        }
        None => Ok(()),
    }
}

/// Whether `paths` contains `path` or one of its ancestors.
fn is_within(path: &str, paths: &BTreeSet<String>) -> bool {
    let ends = |rest: &str| rest.is_empty() || rest.starts_with(['.', '[']);
    paths.iter().any(|p| path.strip_prefix(p.as_str()).is_some_and(ends))
}

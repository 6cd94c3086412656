//! Bodies of requests, parsed with errors that name the field.

use std::collections::BTreeSet;
use std::sync::Arc;

use axum::extract::{FromRequest, Request};
use serde::de::DeserializeOwned;

use crate::app::App;
use crate::error::ApiError;
use crate::receive::receive;

/// A JSON body that is made of one struct.
pub struct Body<T>(pub T);

/// A JSON body whose fields belong to two structs: the endpoint's own, and those that endpoints share.
pub struct Body2<A, B>(pub A, pub B);

impl<T: DeserializeOwned> FromRequest<Arc<App>> for Body<T> {
    type Rejection = ApiError;

    async fn from_request(request: Request, app: &Arc<App>) -> Result<Self, ApiError> {
        let bytes = receive(request, app).await?;
        let (value, unknown) = parse(&bytes)?;
        refuse(unknown)?;
        Ok(Body(value))
    }
}

impl<A: DeserializeOwned, B: DeserializeOwned> FromRequest<Arc<App>> for Body2<A, B> {
    type Rejection = ApiError;

    async fn from_request(request: Request, app: &Arc<App>) -> Result<Self, ApiError> {
        let bytes = receive(request, app).await?;
        let (a, unknown_to_a) = parse(&bytes)?;
        let (b, unknown_to_b) = parse(&bytes)?;
        let both = |path: &&String| is_within(path, &unknown_to_a) && is_within(path, &unknown_to_b);
        refuse(unknown_to_a.iter().chain(&unknown_to_b).filter(both).cloned().collect())?;
        Ok(Body2(a, b))
    }
}

/// A value, and the paths of the fields that it has no use for.
fn parse<T: DeserializeOwned>(bytes: &[u8]) -> Result<(T, BTreeSet<String>), ApiError> {
    let mut json = serde_json::Deserializer::from_slice(bytes);
    let mut track = serde_path_to_error::Track::new();
    let mut unknown = BTreeSet::new();
    let mut ignored = |path: serde_ignored::Path<'_>| {
        // Optional fields are in the path as question marks.
        unknown.insert(path.to_string().replace(".?", ""));
    };
    let tracked = serde_path_to_error::Deserializer::new(&mut json, &mut track);
    let value = T::deserialize(serde_ignored::Deserializer::new(tracked, &mut ignored)).and_then(|value| {
        json.end()?;
        Ok(value)
    });
    value.map(|value| (value, unknown)).map_err(|error| {
        let path = track.path().to_string();
        if error.is_data() && path != "." {
            ApiError::field(path.clone(), format!("{path}: {error}"))
        } else if error.is_data() {
            ApiError::invalid(error.to_string())
        } else {
            ApiError::invalid(format!("the body is not JSON: {error}"))
        }
    })
}

/// Whether `path`, or something that it is part of, is among `paths`.
fn is_within(path: &str, paths: &BTreeSet<String>) -> bool {
    paths.iter().any(|p| path.strip_prefix(p.as_str()).is_some_and(|rest| rest.is_empty() || rest.starts_with('.')))
}

fn refuse(unknown: BTreeSet<String>) -> Result<(), ApiError> {
    match unknown.into_iter().next() {
        Some(field) => Err(ApiError::field(field.clone(), format!("the field {field:?} is not supported"))),
        None => Ok(()),
    }
}

//! Errors in Dynamo's classes. The class determines the frontend's reaction: answer 400, try another worker, or give
//! up.

use dynamo_backend_common::{BackendError, DynamoError, ErrorType};
use engine::tools::error::Refusal;
use server::worker::{Failure, Status};

/// Creates an error of the engine.
pub fn backend(kind: BackendError, message: impl Into<String>) -> DynamoError {
    DynamoError::builder().error_type(ErrorType::Backend(kind)).message(message).build()
}

/// Creates an error for an invalid or unsupported request. Clients may read its message.
pub fn refused(refusal: &Refusal) -> DynamoError {
    invalid(refusal.to_string())
}

/// Creates an error for a job without an answer, given the engine's status.
pub fn failed(failure: &Failure, status: &Status) -> DynamoError {
    let message = failure.to_string();
    match failure {
        Failure::Refused(_) | Failure::NoRoom { .. } => invalid(message),
        // Another worker may have room.
        Failure::QueueFull => DynamoError::builder().error_type(ErrorType::WorkerOverloaded).message(message).build(),
        Failure::Engine if matches!(status, Status::Broken(_)) => backend(BackendError::EngineShutdown, message),
        Failure::Engine => backend(BackendError::Unknown, message),
        Failure::Stopped => backend(BackendError::EngineShutdown, message),
        Failure::Dropped => backend(BackendError::StreamIncomplete, message),
    }
}

fn invalid(message: String) -> DynamoError {
    let class = ErrorType::Backend(BackendError::InvalidArgument);
    DynamoError::builder().error_type(class).message(message.clone()).public_message(message).build()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_full_queue_may_be_retried_elsewhere_but_an_invalid_request_may_not() {
        let class = |failure: Failure| failed(&failure, &Status::Ready).error_type();
        assert_eq!(class(Failure::QueueFull), ErrorType::WorkerOverloaded);
        let refusal = Refusal { field: Some("top_p"), why: "top_p must be above 0".into() };
        assert_eq!(class(Failure::Refused(refusal.clone())), ErrorType::Backend(BackendError::InvalidArgument));
        assert_eq!(refused(&refusal).public_message(), Some("top_p must be above 0"));
        assert_eq!(class(Failure::Engine), ErrorType::Backend(BackendError::Unknown));
        let broken = failed(&Failure::Engine, &Status::Broken("no memory".into()));
        assert_eq!(broken.error_type(), ErrorType::Backend(BackendError::EngineShutdown));
    }
}

//! The CPU: the reference, and the fallback where there is no GPU.

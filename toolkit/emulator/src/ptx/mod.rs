//! Reading PTX: text to tokens to statements. Nothing here knows what an instruction does.

pub(crate) mod ast;
mod error;
mod function;
mod lexer;
mod operands;
mod parser;
mod variables;

pub use error::ParseError;
pub(crate) use parser::parse;

//! The PTX parser: text to tokens to statements. It does not know the meaning of instructions.

pub(crate) mod ast;
mod error;
mod function;
mod lexer;
mod operands;
mod parser;
mod variables;

pub use error::ParseError;
pub(crate) use parser::parse;

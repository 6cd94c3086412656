//! Answers two requests at the same time with the bundled model: `cargo run -p engine --example generate`.

use engine::{Event, Llm, ModelFiles, Options, Prompt, SamplingParams};

fn main() -> engine::Result<()> {
    // The model bundled with the program. `ModelFiles::directory` and `ModelFiles::resolve` find others.
    let mut llm = Llm::load(&ModelFiles::bundled(), &Options::default())?;
    let params = SamplingParams { max_tokens: 12, temperature: 0.0, ..SamplingParams::default() };
    llm.add(&Prompt::Text("Once upon a time".into()), params.clone())?;
    llm.add(&Prompt::Text("The little dog".into()), params)?;
    while llm.has_work() {
        for event in llm.step()? {
            match event {
                Event::Token { id, text, .. } => println!("request {id} continues with {text:?}"),
                Event::Done(completion) => println!("{}{}", completion.prompt, completion.outputs[0].text),
                Event::Prompt { .. } => {}
            }
        }
    }
    Ok(())
}

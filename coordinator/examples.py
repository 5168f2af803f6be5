"""Client examples to paste, with the URL and the model names of the running cluster."""

from __future__ import annotations


def client_examples(url: str, models: list[str]) -> str:
    """One session that switches to another model at its second call (if there is another one)."""
    first, last = models[0], models[-1]
    return f"""
The coordinator answers at {url} (models: {", ".join(models)}; `auto` lets the router decide).
What it does is shown at {url}/dashboard.

  curl {url}/v1/chat/completions -H 'content-type: application/json' \\
    -H 'x-session-id: my-session' \\
    -d '{{"model": "{first}", "max_tokens": 32,
         "messages": [{{"role": "user", "content": "Say hello."}}]}}'
  curl {url}/v1/sessions/my-session

  from openai import OpenAI
  client = OpenAI(base_url="{url}/v1", api_key="me",
                  default_headers={{"x-session-id": "my-second-session"}})
  messages = [{{"role": "user", "content": "Say hello."}}]
  for model in ("{first}", "{last}"):
      answer = client.chat.completions.create(model=model, messages=messages, max_tokens=32)
      print(model, answer.choices[0].message.content, answer.usage)
      messages += [{{"role": "assistant", "content": answer.choices[0].message.content}},
                   {{"role": "user", "content": "And again."}}]
"""

"""Renders a conversation to the prompt a chat model was trained on, as transformers' `apply_chat_template` does."""

import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import Any

from jinja2 import Template
from jinja2.exceptions import TemplateError, TemplateSyntaxError

from gateway.text.template_sandbox import Budget, ChatEnvironment, RenderLimits

Message = Mapping[str, Any]

# Compiling takes 13 microseconds per character (1 MiB: 14 s); the longest templates in use have some 30,000.
MAX_TEMPLATE_CHARACTERS = 128 * 1024

# Names that a template knows from the conversation and the request.
GIVEN = frozenset({"messages", "tools", "documents", "add_generation_prompt"})

# Follows the last message while it is rendered, to find where it ends. The space shows whether the template trims.
_END_MARK = "END_OF_THE_MESSAGE_TO_CONTINUE "

# Names under which clients and templates know a message's reasoning; the first given one is copied to the others.
_REASONING = ("reasoning_content", "thinking", "reasoning")


class ChatTemplateError(ValueError):
    """The template refuses the conversation, is broken or is missing; the message is fit for the client.

    `line` is the template's line, or None where there is none to name.
    """

    def __init__(self, message: str, line: int | None = None):
        super().__init__(message if line is None else f"{message} (chat template, line {line})")
        self.line = line


class ChatTemplate:
    """The chat template of one model. Any number of threads may render at once; `render` may take `limits.seconds`."""

    def __init__(
        self,
        templates: str | Mapping[str, str] | None,
        special_tokens: Mapping[str, str],
        *,
        limits: RenderLimits | None = None,
        now: Callable[[], datetime] = datetime.now,
        clock: Callable[[], float] = time.monotonic,
    ):
        """Take the templates and the named tokens of a `Tokenizer` (`chat_template`, `special_tokens`).

        Of several templates `tool_use` renders conversations with tools and `default` all others. A broken template is
        reported when it is first used: a model without chat still continues prompts. `now` is the time templates see.
        """
        self._sources = {"default": templates} if isinstance(templates, str) else dict(templates or {})
        self._special_tokens = dict(special_tokens)
        self._limits = limits or RenderLimits()
        self._clock = clock
        self._environment = ChatEnvironment(now)
        self._compiled: dict[str, Template] = {}

    @property
    def exists(self) -> bool:
        """Whether the model has a chat template."""
        return bool(self._sources)

    @property
    def tool_source(self) -> str:
        """The template that renders conversations with tools; empty without one."""
        return self._sources.get("tool_use", self._sources.get("default", ""))

    def says(self, words: str) -> bool:
        """Whether any of the templates holds these words."""
        return any(words in source for source in self._sources.values())

    def render(
        self,
        messages: Sequence[Message],
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        variables: Mapping[str, Any] | None = None,
    ) -> str:
        """The prompt's text; encode it without adding special tokens.

        `messages` hold plain JSON values (role, content, name, tool_calls, tool_call_id, ...; those that are None are
        left out), `tools` function schemas. `add_generation_prompt` opens the answer, `continue_final_message` leaves
        the last message open instead, so only one of them can be set. `variables` are more names for the template.

        Raises ChatTemplateError.
        """
        template = self._template("tool_use" if tools else "default")
        if continue_final_message and add_generation_prompt:
            raise ChatTemplateError("continue_final_message excludes add_generation_prompt")
        if not messages:
            raise ChatTemplateError("a conversation needs at least one message")
        prepared = [_prepared(message) for message in messages]
        final_text = _mark_end(prepared) if continue_final_message else None
        names = {
            **self._special_tokens,
            **(variables or {}),
            "messages": prepared,
            "tools": None if tools is None else list(tools),
            "documents": None,
            "add_generation_prompt": add_generation_prompt,
        }
        text = self._run(template, names)
        return text if final_text is None else _cut_at_mark(text, final_text)

    def _template(self, name: str) -> Template:
        if not self._sources:
            raise ChatTemplateError("the model has no chat template; send a prompt instead of a conversation")
        if name not in self._sources:
            name = "default"
        if name not in self._sources:
            raise ChatTemplateError(f"the model has no default chat template, only {', '.join(sorted(self._sources))}")
        source = self._sources[name]
        if len(source) > MAX_TEMPLATE_CHARACTERS:
            raise ChatTemplateError(f"the chat template has {len(source)} characters, above {MAX_TEMPLATE_CHARACTERS}")
        template = self._compiled.get(name)
        if template is None:
            try:
                template = self._compiled[name] = self._environment.from_string(source)
            except TemplateSyntaxError as error:
                raise ChatTemplateError(f"the chat template is broken: {error.message}", error.lineno) from error
            except Exception as error:  # Python's compiler and the stack set limits of their own
                raise ChatTemplateError(f"the chat template is broken: {error}") from error
        return template

    def _run(self, template: Template, names: Mapping[str, Any]) -> str:
        try:
            with self._environment.limited(self._limits, self._clock):
                size = Budget(self._limits, self._clock)
                pieces = []
                for piece in template.root_render_func(template.new_context(dict(names))):
                    size.write(len(piece))
                    pieces.append(piece)
                return "".join(pieces)
        except TemplateError as error:
            raise ChatTemplateError(error.message or "the chat template refuses", _line(template, error)) from error
        except Exception as error:  # whatever a template's expression does to a client's value is the client's error
            raise ChatTemplateError(f"{type(error).__name__}: {error}", _line(template, error)) from error


def _line(template: Template, error: BaseException) -> int | None:
    """The template's line an error came from, the innermost where macros call each other."""
    line = None
    for frame, compiled_line in traceback.walk_tb(error.__traceback__):
        if frame.f_globals.get("__jinja_template__") is template:
            line = template.get_corresponding_lineno(compiled_line)
    return line


def _prepared(message: Message) -> dict[str, Any]:
    """A copy of a message as templates expect it: None is absent, and reasoning has all its names."""
    copy = {key: value for key, value in message.items() if value is not None}
    for name in _REASONING:
        if name in copy:
            return {"thinking": copy[name], **copy, "reasoning_content": copy[name]}
    return copy


def _mark_end(messages: list[dict[str, Any]]) -> str:
    """Put the mark behind the last message's text, in place; returns the text."""
    match messages[-1].get("content"):
        case str(text):
            messages[-1]["content"] = text + _END_MARK
            return text
        case [*parts]:
            for index in reversed(range(len(parts))):
                if isinstance(parts[index], dict) and isinstance(text := parts[index].get("text"), str):
                    parts[index] = {**parts[index], "text": text + _END_MARK}
                    messages[-1]["content"] = parts
                    return text
    raise ChatTemplateError("continue_final_message: the last message has no text to continue")


def _cut_at_mark(rendered: str, final_text: str) -> str:
    end = rendered.rfind(_END_MARK.rstrip())
    if end < 0 or final_text.strip() not in rendered:
        raise ChatTemplateError("continue_final_message: the chat template leaves out or changes the last message")
    if rendered.startswith(_END_MARK, end):
        return rendered[:end]
    # The template trims messages, so the space before the mark would have gone with it.
    return rendered[:end].rstrip()

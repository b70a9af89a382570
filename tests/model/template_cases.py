# ruff: noqa: E501 (templates keep their own lines)
"""Chat templates in the shapes of the model families we support, and conversations to render with them.

Together they use what real templates use of Jinja2 and of Python's string methods.
"""

from __future__ import annotations

from typing import Any

CHATML = """\
{% for message in messages %}{% if loop.first and messages[0]['role'] != 'system' %}{{ '<|im_start|>system
You are a helpful assistant.<|im_end|>
' }}{% endif %}{{'<|im_start|>' + message['role'] + '
' + message['content'] + '<|im_end|>' + '
'}}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant
' }}{% endif %}"""

HEADERS = """\
{{- bos_token }}
{%- if not date_string is defined %}
    {%- if strftime_now is defined %}
        {%- set date_string = strftime_now("%d %b %Y") %}
    {%- else %}
        {%- set date_string = "26 Jul 2024" %}
    {%- endif %}
{%- endif %}
{%- if not tools is defined %}
    {%- set tools = none %}
{%- endif %}
{%- if messages[0]['role'] == 'system' %}
    {%- set system_message = messages[0]['content']|trim %}
    {%- set messages = messages[1:] %}
{%- else %}
    {%- set system_message = "" %}
{%- endif %}
{{- "<|start_header_id|>system<|end_header_id|>\\n\\n" }}
{{- "Today: " + date_string + "\\n\\n" }}
{%- if tools is not none %}
    {%- for t in tools %}
        {{- t | tojson(indent=4) }}
        {{- "\\n\\n" }}
    {%- endfor %}
{%- endif %}
{{- system_message }}
{{- "<|eot_id|>" }}
{%- for message in messages %}
    {%- if not (message.role == 'ipython' or message.role == 'tool' or 'tool_calls' in message) %}
        {{- '<|start_header_id|>' + message['role'] + '<|end_header_id|>\\n\\n'+ message['content'] | trim + '<|eot_id|>' }}
    {%- elif 'tool_calls' in message %}
        {%- if not message.tool_calls|length == 1 %}
            {{- raise_exception("This model only supports single tool-calls at once!") }}
        {%- endif %}
        {%- set tool_call = message.tool_calls[0].function %}
        {{- '<|start_header_id|>assistant<|end_header_id|>\\n\\n' -}}
        {{- '{"name": "' + tool_call.name + '", ' }}
        {{- '"parameters": ' }}
        {{- tool_call.arguments | tojson }}
        {{- "}" }}
        {{- "<|eot_id|>" }}
    {%- elif message.role == "tool" or message.role == "ipython" %}
        {{- "<|start_header_id|>ipython<|end_header_id|>\\n\\n" }}
        {%- if message.content is mapping or message.content is iterable %}
            {{- message.content | tojson }}
        {%- else %}
            {{- message.content }}
        {%- endif %}
        {{- "<|eot_id|>" }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}
{%- endif %}
"""

ALTERNATING = """\
{{ bos_token }}{% if messages[0]['role'] == 'system' %}{{ raise_exception('System role not supported') }}{% endif %}\
{% for message in messages %}
    {% if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}
        {{ raise_exception('Conversation roles must alternate user/assistant/user/assistant/...') }}
    {% endif %}
    {% if (message['role'] == 'assistant') %}{% set role = 'model' %}{% else %}{% set role = message['role'] %}{% endif %}
    {{ '<start_of_turn>' + role + '\\n' + message['content'] | trim + '<end_of_turn>\\n' }}
{% endfor %}
{% if add_generation_prompt %}{{'<start_of_turn>model\\n'}}{% endif %}"""

INSTRUCT = """\
{{- bos_token }}
{%- set ns = namespace(system="", turns=0) %}
{%- for message in messages %}
    {%- if message.role == "system" %}
        {%- set ns.system = ns.system ~ message.content ~ "\\n\\n" %}
        {%- continue %}
    {%- endif %}
    {%- set ns.turns = ns.turns + 1 %}
    {%- if message.role == "user" %}
        {{- "[INST] " ~ (ns.system if loop.last else "") ~ message.content ~ " [/INST]" }}
    {%- elif message.role == "assistant" %}
        {% generation %}{{- " " + message.content.strip() + eos_token }}{% endgeneration %}
    {%- endif %}
    {%- if ns.turns > 50 %}{% break %}{% endif %}
{%- endfor %}
"""

THINKING = """\
{%- if tools %}
    {{- '<|im_start|>system\\n' }}
    {%- if messages[0].role == 'system' %}
        {{- messages[0].content + '\\n\\n' }}
    {%- endif %}
    {{- "# Tools\\n<tools>" }}
    {%- for tool in tools %}
        {{- "\\n" }}
        {{- tool | tojson }}
    {%- endfor %}
    {{- "\\n</tools><|im_end|>\\n" }}
{%- else %}
    {%- if messages[0].role == 'system' %}
        {{- '<|im_start|>system\\n' + messages[0].content + '<|im_end|>\\n' }}
    {%- endif %}
{%- endif %}
{%- set ns = namespace(multi_step_tool=true, last_query_index=messages|length - 1) %}
{%- for message in messages[::-1] %}
    {%- set index = (messages|length - 1) - loop.index0 %}
    {%- if ns.multi_step_tool and message.role == "user" and message.content is string
        and not(message.content.startswith('<tool_response>') and message.content.endswith('</tool_response>')) %}
        {%- set ns.multi_step_tool = false %}
        {%- set ns.last_query_index = index %}
    {%- endif %}
{%- endfor %}
{%- for message in messages %}
    {%- if message.content is string %}
        {%- set content = message.content %}
    {%- else %}
        {%- set content = '' %}
    {%- endif %}
    {%- if (message.role == "user") or (message.role == "system" and not loop.first) %}
        {{- '<|im_start|>' + message.role + '\\n' + content + '<|im_end|>' + '\\n' }}
    {%- elif message.role == "assistant" %}
        {%- set reasoning_content = '' %}
        {%- if message.reasoning_content is string %}
            {%- set reasoning_content = message.reasoning_content %}
        {%- else %}
            {%- if '</think>' in content %}
                {%- set reasoning_content = content.split('</think>')[0].rstrip('\\n').split('<think>')[-1].lstrip('\\n') %}
                {%- set content = content.split('</think>')[-1].lstrip('\\n') %}
            {%- endif %}
        {%- endif %}
        {%- if loop.index0 > ns.last_query_index and (loop.last or (not loop.last and reasoning_content)) %}
            {{- '<|im_start|>' + message.role + '\\n<think>\\n' + reasoning_content.strip('\\n') + '\\n</think>\\n\\n' }}
            {{- content.lstrip('\\n') }}
        {%- else %}
            {{- '<|im_start|>' + message.role + '\\n' + content }}
        {%- endif %}
        {%- if message.tool_calls %}
            {%- for tool_call in message.tool_calls %}
                {%- if (loop.first and content) or (not loop.first) %}
                    {{- '\\n' }}
                {%- endif %}
                {%- if tool_call.function %}
                    {%- set tool_call = tool_call.function %}
                {%- endif %}
                {{- '<tool_call>\\n{"name": "' }}
                {{- tool_call.name }}
                {{- '", "arguments": ' }}
                {%- if tool_call.arguments is string %}
                    {{- tool_call.arguments }}
                {%- else %}
                    {{- tool_call.arguments | tojson }}
                {%- endif %}
                {{- '}\\n</tool_call>' }}
            {%- endfor %}
        {%- endif %}
        {{- '<|im_end|>\\n' }}
    {%- elif message.role == "tool" %}
        {%- if loop.first or (messages[loop.index0 - 1].role != "tool") %}
            {{- '<|im_start|>user' }}
        {%- endif %}
        {{- '\\n<tool_response>\\n' }}
        {{- content }}
        {{- '\\n</tool_response>' }}
        {%- if loop.last or (messages[loop.index0 + 1].role != "tool") %}
            {{- '<|im_end|>\\n' }}
        {%- endif %}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n' }}
    {%- if enable_thinking is defined and enable_thinking is false %}
        {{- '<think>\\n\\n</think>\\n\\n' }}
    {%- endif %}
{%- endif %}
"""

ROLES_AS_MARKERS = """\
{% for message in messages %}{{ '<|' + message['role'] + '|>\\n' + message['content'] + '<|end|>\\n' }}{% endfor %}\
{% if add_generation_prompt %}{{ '<|assistant|>\\n' }}{% else %}{{ eos_token }}{% endif %}"""

MACROS = """\
{%- macro show(value, depth=0) %}
    {%- if value is mapping %}
        {%- for k, v in value|dictsort %}
            {{- "  " * depth + k|upper + ":\\n" + show(v, depth + 1) }}
        {%- endfor %}
    {%- elif value is sequence and value is not string %}
        {{- value|map("string")|join(", ") + "\\n" }}
    {%- else %}
        {{- "  " * depth ~ value ~ "\\n" }}
    {%- endif %}
{%- endmacro %}
{%- set users = messages|selectattr("role", "equalto", "user")|list %}
{{- "users: " ~ users|length ~ "\\n" }}
{%- for tool in tools or [] %}{{ show(tool) }}{% endfor %}
{%- for m in messages if m.role != "system" %}
{{ loop.index }}/{{ loop.length }} {{ m.role|capitalize }}: {{ m.content|replace("\\n", " / ") }}
{%- endfor %}
{{- "%s tokens %05d" % ("é", 42) }} {{ "{} and {x}".format(1, x=2) }}
{{- ["b", "a"]|sort|join("-") }} {{ "Title case"|title }} {{ (messages|last).content.splitlines()|first }}
"""

TEMPLATES = {
    "chatml": CHATML,
    "headers": HEADERS,
    "alternating": ALTERNATING,
    "instruct": INSTRUCT,
    "thinking": THINKING,
    "roles as markers": ROLES_AS_MARKERS,
    "macros": MACROS,
}

_CHAT = [
    {"role": "system", "content": "Be brief. "},
    {"role": "user", "content": " What is 2 + 2?\nThink."},
    {"role": "assistant", "content": "4"},
    {"role": "user", "content": "用中文 \"回答\" <b>é</b> & 'x'"},
]
_NO_SYSTEM = _CHAT[1:]
_TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "weather",
            "description": 'Wetter für einen Ort, <now> & "here"',
            "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
        },
    }
]
_TOOL_CHAT = [
    {"role": "user", "content": "Weather in 北京?"},
    {
        "role": "assistant",
        "content": "",
        "tool_calls": [
            {"id": "1", "type": "function", "function": {"name": "weather", "arguments": {"city": "北京", "days": 2}}}
        ],
    },
    {"role": "tool", "content": '{"temperature": 21}', "tool_call_id": "1"},
]
_THOUGHTS = [
    {"role": "user", "content": "First"},
    {"role": "assistant", "content": "<think>\nhm\n</think>\n\nAnswer one"},
    {"role": "user", "content": "Second"},
]

CASES: dict[str, dict[str, Any]] = {
    "chatml": {"template": "chatml", "messages": _CHAT},
    "chatml without system": {"template": "chatml", "messages": _NO_SYSTEM},
    "chatml, no prompt": {"template": "chatml", "messages": _CHAT, "add_generation_prompt": False},
    "chatml, continued": {
        "template": "chatml",
        "messages": [*_NO_SYSTEM, {"role": "assistant", "content": "The answer "}],
        "add_generation_prompt": False,
        "continue_final_message": True,
    },
    "alternating, continued": {
        "template": "alternating",
        "messages": [*_NO_SYSTEM, {"role": "assistant", "content": "The answer "}],
        "add_generation_prompt": False,
        "continue_final_message": True,
    },
    "headers": {"template": "headers", "messages": _CHAT},
    "headers with tools": {"template": "headers", "messages": _TOOL_CHAT, "tools": _TOOLS},
    "headers with a date": {"template": "headers", "messages": _CHAT, "kwargs": {"date_string": "1 Jan 2025"}},
    "alternating": {"template": "alternating", "messages": _NO_SYSTEM},
    "instruct": {"template": "instruct", "messages": _CHAT},
    "thinking": {"template": "thinking", "messages": _CHAT},
    "thinking, earlier thoughts": {"template": "thinking", "messages": _THOUGHTS},
    "thinking switched off": {"template": "thinking", "messages": _CHAT, "kwargs": {"enable_thinking": False}},
    "thinking, last thoughts": {
        "template": "thinking",
        "messages": _THOUGHTS[:2],
        "add_generation_prompt": False,
    },
    "thinking with tools": {"template": "thinking", "messages": _TOOL_CHAT, "tools": _TOOLS},
    "roles as markers": {"template": "roles as markers", "messages": _CHAT},
    "macros": {"template": "macros", "messages": _CHAT, "tools": _TOOLS},
}

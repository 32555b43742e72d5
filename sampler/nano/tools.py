"""The inventory: tools the bundled model is trained on, each with the ways people ask for it.

A phrase is plain text with ``{slot}`` for a value (``{key.member}`` inside a nested object),
``[...]`` for a part that may be left out with its slots, and ``(a|b)`` for a choice of words.
A slot outside brackets is required in the schema as well; one inside brackets is optional there.
`other_name` and `other_keys` are what the same tool is called under somebody else's conventions.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from sampler.nano.slots import (
    Choice,
    Flag,
    Integer,
    Many,
    Number,
    Record,
    Rows,
    Slot,
    Text,
    object_schema,
)


@dataclass(frozen=True)
class Tool:
    """A tool that the model knows, and how people ask for it.

    Attributes:
        name, description: as trained.
        other_name, other_keys: under somebody else's conventions.
        slots: parameter to the values it takes, in the order of the schema.
        required: parameters that a call must have.
        phrases: requests, with slots in braces and what may be left out in brackets.
    """

    name: str
    other_name: str
    description: str
    slots: dict[str, Slot]
    required: tuple[str, ...]
    phrases: tuple[str, ...]
    other_keys: dict[str, str] = field(default_factory=dict)

    @property
    def topic(self) -> str:
        """The word that its description starts with, and that no other tool's does."""
        return self.description.partition(":")[0]

    def definition(self) -> dict:
        """The tool as an OpenAI `tools` entry."""
        return {
            "type": "function",
            "function": {
                "name": self.name,
                "description": self.description,
                "parameters": object_schema(self.slots, list(self.required)),
            },
        }


_UNITS = Choice(
    {
        "celsius": ("Celsius", "degrees Celsius"),
        "fahrenheit": ("Fahrenheit", "degrees Fahrenheit"),
    }
)
_PRIORITY = Choice(
    {
        "low": ("low priority", "no rush"),
        "normal": ("normal priority",),
        "high": ("high priority", "as urgent"),
    }
)
_REPEAT = Choice(
    {
        "daily": ("every day", "daily"),
        "weekly": ("every week", "weekly"),
        "monthly": ("every month", "monthly"),
    }
)
_CURRENCY = Choice(
    {
        "usd": ("dollars", "US dollars"),
        "eur": ("euros",),
        "gbp": ("pounds", "British pounds"),
        "jpy": ("yen",),
    }
)
_REMIND = Flag(("with a reminder", "and remind me"), ("without a reminder", "with no reminder"))
_SORT = Choice(
    {
        "price": ("by price", "cheapest first"),
        "rating": ("by rating", "best rated first"),
        "newest": ("newest first", "by date"),
    }
)

TOOLS: tuple[Tool, ...] = (
    Tool(
        "get_weather",
        "weather_lookup",
        "Weather: weather, forecast or rain in a city",
        {"city": Text("city"), "units": _UNITS, "days": Integer(1, 10)},
        ("city",),
        (
            "(what is|how is|tell me|check) the weather in {city}[ for {days} days][ in {units}]",
            "give me the forecast for {city}[ for the next {days} days][, in {units}]",
            "will it rain in {city}[ over {days} days][ (use {units})]",
        ),
        {"city": "location", "units": "unit", "days": "num_days"},
    ),
    Tool(
        "search_web",
        "web_search",
        "Search: search the web, look up or google a topic online",
        {
            "query": Text("topic"),
            "max_results": Integer(1, 20),
            "safe": Flag(
                ("with safe search", "safe search on"), ("without safe search", "safe search off")
            ),
        },
        ("query",),
        (
            "search the web for {query}[, {max_results} results][, {safe}]",
            "look up {query} (online|on the internet)[ and show {max_results} results][, {safe}]",
            "google {query}[, top {max_results}]",
        ),
        {"query": "q", "max_results": "limit", "safe": "safe_search"},
    ),
    Tool(
        "send_email",
        "email_send",
        "Email: send or write an email or mail with a subject and body",
        {
            "to": Text("email"),
            "subject": Text("title"),
            "body": Text("message"),
            "priority": _PRIORITY,
        },
        ("to", "subject", "body"),
        (
            "(send an email|write) to {to} about {subject} saying {body}[, {priority}]",
            "email {to} with the subject {subject} and the text {body}[, {priority}]",
            "mail {to}: subject {subject}, body {body}[, {priority}]",
        ),
        {"to": "recipient", "subject": "title", "body": "content", "priority": "importance"},
    ),
    Tool(
        "create_event",
        "add_calendar_entry",
        "Calendar: schedule, plan or put an event in the calendar",
        {
            "title": Text("topic"),
            "date": Text("date"),
            "time": Text("time"),
            "attendees": Many(Text("first_name")),
            "reminder": _REMIND,
        },
        ("title", "date"),
        (
            "(schedule|add|create) an event called {title} on {date}[ at {time}][ with {attendees}]"
            "[, {reminder}]",
            "put {title} in my calendar for {date}[ at {time}][, invite {attendees}][, {reminder}]",
            "plan {title} on {date}[, starting {time}][, attendees {attendees}]",
        ),
        {
            "title": "event_name",
            "date": "day",
            "time": "start_time",
            "attendees": "participants",
            "reminder": "notify",
        },
    ),
    Tool(
        "set_alarm",
        "alarm_create",
        "Alarm: set an alarm to wake up",
        {"time": Text("time"), "repeat": _REPEAT, "label": Text("task")},
        ("time",),
        (
            "(set|make) an alarm for {time}[, {repeat}][, to {label}]",
            "wake me up at {time}[, {repeat}]",
            "alarm at {time}[, {repeat}][, labelled {label}]",
        ),
        {"time": "alarm_time", "repeat": "frequency", "label": "name"},
    ),
    Tool(
        "set_timer",
        "start_countdown",
        "Timer: start a timer or count down minutes",
        {"minutes": Integer(1, 120), "label": Text("task")},
        ("minutes",),
        (
            "(set|start) a timer for {minutes} minutes[ to {label}]",
            "count down {minutes} minutes[, for {label}]",
            "timer, {minutes} minutes[, named {label}]",
        ),
        {"minutes": "duration_minutes", "label": "timer_name"},
    ),
    Tool(
        "add_reminder",
        "remind_user",
        "Reminder: add a reminder, remind me or do not forget",
        {"text": Text("task"), "day": Text("day"), "priority": _PRIORITY},
        ("text",),
        (
            "remind me to {text}[ (on|for) {day}][, {priority}]",
            "add a reminder: {text}[, {day}][, {priority}]",
            "do not let me forget to {text}[, {day}]",
        ),
        {"text": "note", "day": "due", "priority": "importance"},
    ),
    Tool(
        "book_table",
        "restaurant_reservation",
        "Restaurant: reserve or book a table for a party or people in a restaurant",
        {
            "restaurant": Text("place"),
            "party_size": Integer(1, 12),
            "day": Text("day"),
            "time": Text("time"),
            "outdoor": Flag(("outside", "on the terrace"), ("inside",)),
        },
        ("restaurant", "party_size", "day"),
        (
            "(book|reserve) a table for {party_size} at {restaurant} on {day}"
            "[ at {time}][, {outdoor}]",
            "I want to eat at {restaurant} {day}, party of {party_size}"
            "[, around {time}][, {outdoor}]",
            "get us a table at {restaurant} for {day}, {party_size} people[, {time}]",
        ),
        {"restaurant": "venue", "party_size": "guests", "day": "date", "outdoor": "terrace"},
    ),
    Tool(
        "order_food",
        "place_food_order",
        "Delivery: order or deliver food to an address",
        {
            "items": Rows(
                Record({"name": Text("food"), "quantity": Integer(1, 9)}), "{quantity} {name}"
            ),
            "address": Record({"street": Text("street"), "city": Text("city")}),
            "notes": Text("message"),
        },
        ("items", "address"),
        (
            "order {items} to {address.street} in {address.city}[, note: {notes}]",
            "deliver {items} to {address.street}, {address.city}[, and tell them {notes}]",
            "I would like {items}, my address is {address.street}, {address.city}[, note: {notes}]",
        ),
        {"items": "dishes", "address": "destination", "notes": "comment"},
    ),
    Tool(
        "convert_currency",
        "currency_exchange",
        "Currency: convert or change money, how much it is",
        {"amount": Number(1, 900), "source": _CURRENCY, "target": _CURRENCY},
        ("amount", "source", "target"),
        (
            "convert {amount} {source} (to|into) {target}",
            "how much is {amount} {source} in {target}",
            "change {amount} {source} to {target}",
        ),
        {"amount": "value", "source": "from_currency", "target": "to_currency"},
    ),
    Tool(
        "get_stock_price",
        "stock_quote",
        "Stock: stock price or quote, how it is trading or doing",
        {
            "symbol": Text("symbol"),
            "range": Choice(
                {
                    "1d": ("for today", "over the last day"),
                    "1m": ("over the last month",),
                    "1y": ("over the last year",),
                }
            ),
        },
        ("symbol",),
        (
            "(what is|get|show) the stock price of {symbol}[ {range}]",
            "how is {symbol} (trading|doing)[ {range}]",
            "quote {symbol}[, {range}]",
        ),
        {"symbol": "ticker", "range": "period"},
    ),
    Tool(
        "translate_text",
        "translator",
        "Translation: translate or say text in another language",
        {
            "text": Text("sentence"),
            "language": Text("language"),
            "formal": Flag(("formally", "in formal style"), ("informally", "in casual style")),
        },
        ("text", "language"),
        (
            "translate {text} (to|into) {language}[, {formal}]",
            "how do you say {text} in {language}[, {formal}]",
            "say {text} in {language}[, {formal}]",
        ),
        {"text": "input", "language": "target_language", "formal": "polite"},
    ),
    Tool(
        "play_music",
        "start_playback",
        "Music: play, hear or put on some music",
        {
            "genre": Text("genre"),
            "artist": Text("person"),
            "volume": Integer(0, 100),
            "shuffle": Flag(("shuffled", "on shuffle"), ("in order", "without shuffle")),
        },
        ("genre",),
        (
            "play some {genre}[ by {artist}][ at volume {volume}][, {shuffle}]",
            "put on {genre} music[ by {artist}][, volume {volume}][, {shuffle}]",
            "I want to hear {genre}[ from {artist}][, {shuffle}]",
        ),
        {"genre": "style", "artist": "performer", "volume": "level", "shuffle": "random_order"},
    ),
    Tool(
        "set_light",
        "light_control",
        "Light: turn or switch a room light",
        {
            "room": Text("room"),
            "state": Choice({"on": ("on",), "off": ("off",)}),
            "brightness": Integer(0, 100),
            "color": Text("color"),
        },
        ("room", "state"),
        (
            "turn {state} the light in the {room}[ at {brightness} percent][ in {color}]",
            "switch the {room} light {state}[, brightness {brightness}][, color {color}]",
            "{room} light {state}[, {brightness} percent][, {color}]",
        ),
        {"room": "area", "state": "power", "brightness": "level", "color": "colour"},
    ),
    Tool(
        "set_thermostat",
        "heating_control",
        "Heating: set the thermostat or temperature in degrees",
        {
            "temperature": Integer(10, 30),
            "room": Text("room"),
            "mode": Choice(
                {
                    "heat": ("heating mode", "heating"),
                    "cool": ("cooling mode", "cooling"),
                    "eco": ("eco mode",),
                }
            ),
        },
        ("temperature",),
        (
            "set the (thermostat|temperature) to {temperature} degrees[ in the {room}][, {mode}]",
            "make it {temperature} degrees[ in the {room}][, {mode}]",
            "thermostat to {temperature}[, {room}][, {mode}]",
        ),
        {"temperature": "target_temp", "room": "zone", "mode": "program"},
    ),
    Tool(
        "find_recipe",
        "recipe_finder",
        "Recipe: find a recipe, what to cook",
        {
            "ingredients": Many(Text("ingredient"), 4),
            "diet": Choice(
                {
                    "vegan": ("vegan",),
                    "vegetarian": ("vegetarian",),
                    "gluten_free": ("gluten free",),
                }
            ),
            "max_minutes": Integer(10, 90),
        },
        ("ingredients",),
        (
            "find a recipe with {ingredients}[, {diet}][, under {max_minutes} minutes]",
            "what can I cook with {ingredients}[, it should be {diet}][, in {max_minutes} minutes]",
            "recipe ideas for {ingredients}[, {diet}]",
        ),
        {"ingredients": "foods", "diet": "diet_type", "max_minutes": "time_limit"},
    ),
    Tool(
        "find_flights",
        "flight_search",
        "Flights: find flights, fly from one city to another",
        {
            "origin": Text("city"),
            "destination": Text("city"),
            "date": Text("date"),
            "cabin": Choice(
                {
                    "economy": ("economy", "in economy"),
                    "business": ("business class",),
                    "first": ("first class",),
                }
            ),
            "passengers": Integer(1, 9),
        },
        ("origin", "destination", "date"),
        (
            "find flights from {origin} to {destination} on {date}"
            "[ for {passengers} people][, {cabin}]",
            "I need to fly from {origin} to {destination} on {date}[, {passengers} passengers]"
            "[, {cabin}]",
            "flights {origin} to {destination}, {date}[, {cabin}]",
        ),
        {
            "origin": "from",
            "destination": "to",
            "date": "departure",
            "cabin": "travel_class",
            "passengers": "travellers",
        },
    ),
    Tool(
        "book_hotel",
        "hotel_booking",
        "Hotel: book or reserve a hotel room for nights",
        {
            "city": Text("city"),
            "check_in": Text("date"),
            "nights": Integer(1, 14),
            "breakfast": Flag(("with breakfast", "breakfast included"), ("without breakfast",)),
        },
        ("city", "check_in", "nights"),
        (
            "book a hotel in {city} from {check_in} for {nights} nights[, {breakfast}]",
            "I need a room in {city}, {nights} nights starting {check_in}[, {breakfast}]",
            "reserve a hotel in {city} on {check_in}, {nights} nights[, {breakfast}]",
        ),
        {
            "city": "location",
            "check_in": "arrival",
            "nights": "num_nights",
            "breakfast": "include_breakfast",
        },
    ),
    Tool(
        "get_directions",
        "route_planner",
        "Route: directions, route, how to get from a place to another",
        {
            "start": Text("place"),
            "end": Text("place"),
            "mode": Choice(
                {
                    "driving": ("by car", "driving"),
                    "walking": ("on foot", "walking"),
                    "transit": ("by public transport", "by bus"),
                    "cycling": ("by bike", "cycling"),
                }
            ),
        },
        ("start", "end"),
        (
            "(give me|get) directions from {start} to {end}[ {mode}]",
            "how do I get from {start} to {end}[ {mode}]",
            "route from {start} to {end}[, {mode}]",
        ),
        {"start": "origin", "end": "destination", "mode": "transport"},
    ),
    Tool(
        "track_package",
        "shipment_status",
        "Parcel: track a parcel, package or order, its delivery status",
        {
            "order_id": Text("order_id"),
            "notify": Flag(("and notify me", "with notifications"), ("without notifications",)),
        },
        ("order_id",),
        (
            "track (package|parcel|order) {order_id}[, {notify}]",
            "where is my order {order_id}[, {notify}]",
            "delivery status of {order_id}[, {notify}]",
        ),
        {"order_id": "tracking_number", "notify": "alerts"},
    ),
    Tool(
        "search_products",
        "catalog_query",
        "Shop: shop, find or buy a product in the shop",
        {
            "query": Text("product"),
            "max_price": Integer(5, 500),
            "sort": _SORT,
            "in_stock": Flag(("in stock only", "only available ones"), ("including sold out",)),
        },
        ("query",),
        (
            "(find|show me|search) a {query} in the shop[ under {max_price}]"
            "[, {sort}][, {in_stock}]",
            "shop for a {query}[, at most {max_price}][, {sort}][, {in_stock}]",
            "I want to buy a {query}[, budget {max_price}][, {sort}]",
        ),
        {
            "query": "keywords",
            "max_price": "price_limit",
            "sort": "sort_by",
            "in_stock": "available",
        },
    ),
    Tool(
        "add_to_cart",
        "cart_insert",
        "Cart: put or add products into the cart",
        {"product": Text("product"), "quantity": Integer(1, 20), "color": Text("color")},
        ("product", "quantity"),
        (
            "add {quantity} {product} to (my|the) cart[, in {color}]",
            "put {quantity} of the {product} into the cart[, color {color}]",
            "cart: {quantity} {product}[, {color}]",
        ),
        {"product": "item", "quantity": "count", "color": "colour"},
    ),
    Tool(
        "create_invoice",
        "invoice_new",
        "Invoice: create an invoice, bill a customer",
        {
            "customer": Record({"name": Text("person"), "email": Text("email")}),
            "lines": Rows(
                Record({"item": Text("product"), "price": Number(1, 300)}), "{item} at {price}"
            ),
            "currency": _CURRENCY,
        },
        ("customer", "lines"),
        (
            "(create|write) an invoice for {customer.name} ({customer.email}): {lines}"
            "[, in {currency}]",
            "bill {customer.name}, {customer.email}, for {lines}[, paid in {currency}]",
            "invoice {customer.name} at {customer.email} for {lines}[, {currency}]",
        ),
        {"customer": "client", "lines": "positions", "currency": "currency_code"},
    ),
    Tool(
        "create_contact",
        "contact_add",
        "Contact: add, save or store a new contact in contacts",
        {
            "name": Text("person"),
            "email": Text("email"),
            "address": Record({"street": Text("street"), "city": Text("city")}),
        },
        ("name",),
        (
            "(add|save) {name} to my contacts[, email {email}]"
            "[, living at {address.street} in {address.city}]",
            "new contact {name}[, {email}][, address {address.street}, {address.city}]",
            "store a contact for {name}[, mail {email}]",
        ),
        {"name": "full_name", "email": "mail", "address": "home"},
    ),
    Tool(
        "send_message",
        "chat_send",
        "Message: send or write a message, tell somebody",
        {
            "recipient": Text("first_name"),
            "text": Text("message"),
            "app": Choice(
                {
                    "sms": ("by SMS", "as a text"),
                    "whatsapp": ("on WhatsApp",),
                    "slack": ("on Slack",),
                }
            ),
        },
        ("recipient", "text"),
        (
            "(send|write) {recipient} a message[ {app}]: {text}",
            "message {recipient}[ {app}] that {text}",
            "tell {recipient} {text}[, {app}]",
        ),
        {"recipient": "contact", "text": "message", "app": "channel"},
    ),
    Tool(
        "read_file",
        "open_document",
        "Reading: read, open, show or print what is in a file",
        {
            "path": Text("file"),
            "max_lines": Integer(1, 500),
            "encoding": Choice({"utf8": ("as UTF-8",), "latin1": ("as Latin-1",)}),
        },
        ("path",),
        (
            "(read|open|show me) the file {path}[, first {max_lines} lines][, {encoding}]",
            "what is in {path}[, {max_lines} lines][, {encoding}]",
            "print {path}[, up to {max_lines} lines]",
        ),
        {"path": "filename", "max_lines": "line_limit", "encoding": "charset"},
    ),
    Tool(
        "write_file",
        "save_document",
        "Writing: write, save or put text into a file",
        {
            "path": Text("file"),
            "content": Text("sentence"),
            "append": Flag(("and append", "appending"), ("and overwrite it", "overwriting")),
        },
        ("path", "content"),
        (
            "write {content} (to|into) the file {path}[, {append}]",
            "save {content} in {path}[, {append}]",
            "put the text {content} into {path}[, {append}]",
        ),
        {"path": "filename", "content": "text", "append": "append_mode"},
    ),
    Tool(
        "list_files",
        "directory_listing",
        "Folder: list or show the files in a folder",
        {
            "folder": Text("folder"),
            "recursive": Flag(("recursively", "with subfolders"), ("without subfolders",)),
            "sort": Choice({"name": ("by name",), "size": ("by size",), "date": ("by date",)}),
        },
        ("folder",),
        (
            "list the files in {folder}[, {recursive}][, sorted {sort}]",
            "what files are in {folder}[, {recursive}][, {sort}]",
            "show the folder {folder}[, {recursive}][, ordered {sort}]",
        ),
        {"folder": "directory", "recursive": "deep", "sort": "order"},
    ),
    Tool(
        "run_query",
        "database_select",
        "Database: query or select columns from a table",
        {
            "table": Text("word"),
            "columns": Many(Text("word")),
            "limit": Integer(1, 500),
            "order": Choice({"asc": ("ascending",), "desc": ("descending",)}),
        },
        ("table", "columns"),
        (
            "select {columns} from the table {table}[, limit {limit}][, {order}]",
            "query the {table} table for {columns}[, {limit} rows][, {order}]",
            "get the columns {columns} of table {table}[, at most {limit}]",
        ),
        {"table": "source", "columns": "fields", "limit": "max_rows", "order": "direction"},
    ),
    Tool(
        "create_task",
        "todo_add",
        "Task: create, add or assign a new task",
        {
            "title": Text("task"),
            "project": Text("title"),
            "assignee": Text("first_name"),
            "priority": _PRIORITY,
        },
        ("title",),
        (
            "create a task to {title}[ in project {project}][ for {assignee}][, {priority}]",
            "new task: {title}[, project {project}][, assign it to {assignee}][, {priority}]",
            "add the task {title}[, for {assignee}][, {priority}]",
        ),
        {"title": "summary", "project": "board", "assignee": "owner", "priority": "urgency"},
    ),
    Tool(
        "close_ticket",
        "resolve_issue",
        "Support: close or mark a ticket done",
        {
            "ticket": Integer(1, 999),
            "reason": Choice(
                {
                    "fixed": ("as fixed", "it is fixed"),
                    "duplicate": ("as a duplicate",),
                    "invalid": ("as invalid",),
                }
            ),
            "comment": Text("message"),
        },
        ("ticket",),
        (
            "close ticket {ticket}[ {reason}][, comment: {comment}]",
            "mark ticket number {ticket} closed[, {reason}][, with the comment {comment}]",
            "ticket {ticket} is done[, close it {reason}]",
        ),
        {"ticket": "ticket_id", "reason": "resolution", "comment": "remark"},
    ),
    Tool(
        "get_news",
        "headlines",
        "News: news, what is new about a topic",
        {"topic": Text("topic"), "language": Text("language"), "count": Integer(1, 20)},
        ("topic",),
        (
            "(get|show me) the news about {topic}[ in {language}][, {count} articles]",
            "what is new in {topic}[, in {language}][, {count} items]",
            "news on {topic}[, {count} stories]",
        ),
        {"topic": "subject", "language": "lang", "count": "n"},
    ),
    Tool(
        "get_score",
        "match_result",
        "Match: score or result of a match, how a team did play",
        {"team": Text("team"), "sport": Text("sport"), "date": Text("date")},
        ("team",),
        (
            "what was the score of the {team}[ in {sport}][ on {date}]",
            "how did the {team} play[, {sport}][, on {date}]",
            "result of the {team} match[ on {date}]",
        ),
        {"team": "club", "sport": "discipline", "date": "match_day"},
    ),
    Tool(
        "calculate_tip",
        "tip_calculator",
        "Tip: calculate or compute the tip on a bill",
        {"bill": Number(5, 400), "percent": Integer(5, 30), "people": Integer(1, 12)},
        ("bill",),
        (
            "(calculate|compute) the tip on {bill}[ at {percent} percent][ split by {people}]",
            "how much tip for a bill of {bill}[, {percent} percent][, {people} people]",
            "tip for {bill}[, {percent} percent]",
        ),
        {"bill": "total", "percent": "rate", "people": "party"},
    ),
    Tool(
        "calculate_loan",
        "mortgage_payment",
        "Loan: calculate the monthly payment of a loan over years",
        {"principal": Integer(1000, 90000), "years": Integer(1, 30), "rate": Number(1, 12)},
        ("principal", "years"),
        (
            "what is the monthly payment for a loan of {principal} over {years} years"
            "[ at {rate} percent]",
            "loan of {principal}, {years} years[, rate {rate}]",
            "calculate a loan: {principal} for {years} years[, {rate} percent]",
        ),
        {"principal": "amount", "years": "term", "rate": "interest"},
    ),
    Tool(
        "convert_units",
        "unit_converter",
        "Units: convert kilometers, miles, kilograms or kilos, how long or heavy",
        {
            "value": Number(1, 500),
            "from_unit": Choice(
                {
                    "km": ("kilometers", "km"),
                    "mi": ("miles",),
                    "kg": ("kilograms", "kilos"),
                    "lb": ("pounds of weight",),
                }
            ),
            "to_unit": Choice(
                {
                    "km": ("kilometers", "km"),
                    "mi": ("miles",),
                    "kg": ("kilograms",),
                    "lb": ("pounds of weight",),
                }
            ),
        },
        ("value", "from_unit", "to_unit"),
        (
            "convert {value} {from_unit} (to|into) {to_unit}",
            "{value} {from_unit} in {to_unit}",
            "how long or heavy is {value} {from_unit} in {to_unit}",
        ),
        {"value": "amount", "from_unit": "source_unit", "to_unit": "target_unit"},
    ),
    Tool(
        "find_movies",
        "movie_search",
        "Movies: find or recommend movies to watch",
        {
            "genre": Choice(
                {
                    "comedy": ("comedies", "funny"),
                    "drama": ("dramas",),
                    "horror": ("horror films", "scary"),
                    "action": ("action films",),
                }
            ),
            "year": Integer(1970, 2026),
            "actor": Text("person"),
            "min_rating": Integer(1, 10),
        },
        ("genre",),
        (
            "find movies, {genre}[, from {year}][, starring {actor}]"
            "[, rated at least {min_rating}]",
            "recommend {genre} to watch[ from {year}][ with {actor}]"
            "[, rating {min_rating} or more]",
            "movies please: {genre}[, year {year}]",
        ),
        {"genre": "category", "year": "release_year", "actor": "cast", "min_rating": "rating"},
    ),
    Tool(
        "buy_tickets",
        "ticket_purchase",
        "Tickets: buy tickets or seats for a show",
        {
            "event": Text("title"),
            "count": Integer(1, 10),
            "seat": Choice(
                {
                    "front": ("front row", "in the front"),
                    "middle": ("in the middle",),
                    "back": ("in the back",),
                }
            ),
            "day": Text("day"),
        },
        ("event", "count"),
        (
            "buy {count} tickets for {event}[ on {day}][, {seat}]",
            "get me {count} seats at {event}[, {day}][, {seat}]",
            "I need {count} tickets to see {event}[, {seat}]",
        ),
        {"event": "show", "count": "quantity", "seat": "section", "day": "date"},
    ),
    Tool(
        "book_taxi",
        "ride_request",
        "Taxi: call or book a taxi or cab",
        {
            "pickup": Text("street"),
            "dropoff": Text("street"),
            "time": Text("time"),
            "passengers": Integer(1, 6),
        },
        ("pickup", "dropoff"),
        (
            "(call|book) a taxi from {pickup} to {dropoff}[ at {time}][ for {passengers}]",
            "I need a cab from {pickup} to {dropoff}[, {time}][, {passengers} passengers]",
            "taxi from {pickup} to {dropoff}[ at {time}]",
        ),
        {"pickup": "from_address", "dropoff": "to_address", "time": "when", "passengers": "riders"},
    ),
    Tool(
        "flight_status",
        "check_flight",
        "Departure: status of a flight, on time or delayed",
        {"flight": Text("flight"), "date": Text("date")},
        ("flight",),
        (
            "(what is|check) the status of flight {flight}[ on {date}]",
            "is flight {flight} on time[, {date}]",
            "flight {flight}, delayed or not[, on {date}]",
        ),
        {"flight": "flight_number", "date": "day"},
    ),
    Tool(
        "log_workout",
        "workout_entry",
        "Workout: log or record a workout, minutes of sport I did",
        {
            "sport": Text("sport"),
            "minutes": Integer(5, 180),
            "intensity": Choice(
                {"easy": ("easy", "light"), "medium": ("moderate",), "hard": ("hard", "intense")}
            ),
        },
        ("sport", "minutes"),
        (
            "log {minutes} minutes of {sport}[, {intensity}]",
            "I did {sport} for {minutes} minutes[, it was {intensity}]",
            "record a workout: {sport}, {minutes} minutes[, {intensity}]",
        ),
        {"sport": "activity", "minutes": "duration", "intensity": "effort"},
    ),
    Tool(
        "log_meal",
        "food_diary",
        "Meal: log or track a meal I ate",
        {
            "foods": Many(Text("food")),
            "calories": Integer(50, 1500),
            "meal": Choice(
                {
                    "breakfast": ("for breakfast",),
                    "lunch": ("for lunch",),
                    "dinner": ("for dinner",),
                }
            ),
        },
        ("foods",),
        (
            "I ate {foods}[ {meal}][, {calories} calories]",
            "log {foods}[ {meal}][, about {calories} calories]",
            "track a meal of {foods}[, {meal}]",
        ),
        {"foods": "items", "calories": "kcal", "meal": "meal_type"},
    ),
    Tool(
        "find_doctor",
        "doctor_search",
        "Doctor: find a doctor for a symptom",
        {
            "city": Text("city"),
            "symptom": Text("symptom"),
            "accepts_new": Flag(("taking new patients",), ("new patients or not",)),
            "radius": Integer(1, 50),
        },
        ("city", "symptom"),
        (
            "find a doctor in {city} for {symptom}[, within {radius} km][, {accepts_new}]",
            "I have {symptom}, which doctor in {city} can help[, at most {radius} km away]"
            "[, {accepts_new}]",
            "doctor for {symptom} near {city}[, radius {radius}]",
        ),
        {
            "city": "location",
            "symptom": "complaint",
            "accepts_new": "open_for_new",
            "radius": "distance",
        },
    ),
    Tool(
        "define_word",
        "dictionary",
        "Dictionary: define a word, what its meaning is, what it does mean",
        {
            "word": Text("word"),
            "language": Text("language"),
            "examples": Flag(("with examples",), ("without examples",)),
        },
        ("word",),
        (
            "define the word {word}[ in {language}][, {examples}]",
            "what does {word} mean[ in {language}][, {examples}]",
            "meaning of {word}[, {examples}]",
        ),
        {"word": "term", "language": "lang", "examples": "show_examples"},
    ),
    Tool(
        "summarize_page",
        "page_digest",
        "Summary: summarize or shorten a document, give a summary",
        {
            "source": Text("file"),
            "sentences": Integer(1, 10),
            "tone": Choice(
                {
                    "neutral": ("neutral tone",),
                    "casual": ("casual tone",),
                    "formal": ("formal tone",),
                }
            ),
        },
        ("source",),
        (
            "summarize {source}[ in {sentences} sentences][, {tone}]",
            "give me a summary of {source}[, {sentences} sentences][, {tone}]",
            "shorten {source}[ to {sentences} sentences][, {tone}]",
        ),
        {"source": "document", "sentences": "length", "tone": "style"},
    ),
    Tool(
        "make_chart",
        "plot_data",
        "Chart: draw or make a chart",
        {
            "kind": Choice(
                {"bar": ("bar chart", "bars"), "line": ("line chart",), "pie": ("pie chart",)}
            ),
            "values": Many(Integer(1, 99), 5),
            "title": Text("topic"),
        },
        ("kind", "values"),
        (
            "draw a {kind} of {values}[ titled {title}]",
            "make a {kind} with the values {values}[, title {title}]",
            "chart with {kind}: {values}[, called {title}]",
        ),
        {"kind": "chart_type", "values": "data", "title": "caption"},
    ),
    Tool(
        "roll_dice",
        "dice_throw",
        "Dice: roll or throw dice",
        {"count": Integer(1, 10), "sides": Integer(2, 20)},
        ("count",),
        (
            "roll {count} dice[ with {sides} sides]",
            "throw {count} dice[, {sides} sided]",
            "{count} dice please[, {sides} sides each]",
        ),
        {"count": "number", "sides": "faces"},
    ),
    Tool(
        "get_time",
        "world_clock",
        "Clock: current time, what time it is in a city",
        {
            "city": Text("city"),
            "format": Choice({"24h": ("in 24 hour format",), "12h": ("in 12 hour format",)}),
        },
        ("city",),
        (
            "what time is it in {city}[, {format}]",
            "current time in {city}[ {format}]",
            "tell me the time in {city}[, {format}]",
        ),
        {"city": "place", "format": "clock"},
    ),
)

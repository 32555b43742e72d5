"""Pools of words that requests are filled with: name -> the lists whose draws are joined."""

_FIRST = (
    "Anna Ben Clara David Elena Felix Grace Hugo Irene Jonas Kira Leo Maria Nils Olga Paul Rosa "
    "Sam Tara Umar Vera Will Yara Zoe Akira Bela Carlos Dana Emil Fatima Goran Hana Ivan Jun "
    "Kofi Lina"
).split()
_LAST = (
    "Adams Baker Costa Dubois Evans Fischer Garcia Hansen Ito Jansen Klein Lopez Meyer Novak "
    "Okafor Patel Quinn Rossi Silva Tanaka Urban Vogel Weber Young Zhang Brandt Keller Moreau "
    "Nowak Singh"
).split()
_CITIES = (
    "Paris Berlin Madrid Rome Vienna Lisbon Dublin Oslo Prague Athens Warsaw Zurich Boston "
    "Denver Austin Seattle Chicago Toronto Lima Bogota Cairo Nairobi Lagos Delhi Mumbai Tokyo "
    "Osaka Seoul Sydney Perth Hanoi Jakarta Tampere Geneva Porto Malmo"
).split()
_PLACES = ["Lake", "North", "Old", "Green", "River", "Silver", "Stone", "Bright", "West", "Royal"]
_KINDS = ["Garden", "Harbor", "Bridge", "Corner", "Market", "Palace", "Tower", "Valley", "House"]
_ADJ = (
    "quiet modern quick simple annual global hidden early final urban daily open green deep "
    "broken golden silent winter summer northern"
).split()
_NOUN = (
    "budget report meeting garden engine ocean project history language market energy software "
    "climate painting railway bicycle coffee forest planet music kitchen castle robot insurance"
).split()
_VERBS = (
    "call water email clean pay fix collect book cancel renew order print review pack"
).split()
_THINGS = (
    "the plants|the dentist|the invoice|the landlord|the parcel|the tickets|the car|the printer|"
    "the contract|the kitchen|the laptop|the passport|the report|the bike"
).split("|")
_DAYS = (
    "today|tomorrow|Monday|Tuesday|Wednesday|Thursday|Friday|Saturday|Sunday|next Monday|"
    "next Friday|next week"
).split("|")
_MONTHS = (
    "January February March April May June July August September October November December"
).split()
_NUMBERS = [str(n) for n in range(1, 29)]
_HOURS = [str(h) for h in range(1, 13)]
_HALVES = [" am", " pm", ":30 am", ":30 pm", ":15 pm", ":45 am"]
_FOODS = (
    "pizza salad burger soup pasta curry sandwich taco sushi noodles omelette pancake risotto wrap"
).split()
_GOODS = (
    "headphones|keyboard|backpack|desk lamp|kettle|notebook|water bottle|jacket|phone case|"
    "monitor|office chair|camera|blender|tent|suitcase|rain coat|running shoes|coffee maker"
).split("|")
_LANGS = (
    "French German Spanish Italian Polish Dutch Greek Turkish Korean Japanese Arabic Hindi "
    "Swedish Portuguese Czech Finnish"
).split()
_SYMBOLS = ("AAPL MSFT NVDA TSLA AMZN META ORCL INTC NFLX ADBE SAP SONY IBM CSCO UBER SHOP").split()
_COLORS = ["red", "blue", "green", "white", "black", "yellow", "purple", "orange", "silver", "grey"]
_ROOMS = (
    "kitchen|bedroom|living room|bathroom|hallway|office|garage|attic|basement|dining room"
).split("|")
_INGREDIENTS = (
    "rice beans tomatoes onions chicken tofu spinach eggs mushrooms lentils cheese garlic "
    "potatoes carrots salmon peppers"
).split()
_GENRES = ("jazz rock techno classical folk soul blues reggae opera metal pop swing").split()
_FILES = (
    "notes report draft budget photo invoice backup summary plan letter readme config"
).split()
_EXTS = [".txt", ".pdf", ".csv", ".md", ".json", ".png"]
_TEAMS = ("Falcons Tigers Rovers Wolves Sharks Eagles Bulls Comets Giants Pirates Knights").split()
_SPORTS = ("football tennis basketball hockey cricket rugby baseball volleyball").split()
_MAILS = ["mail.com", "post.org", "office.net", "example.com", "work.io"]
_PHRASES = (
    "where is the station|good morning|how much is this|thank you very much|see you tomorrow|"
    "the train is late|I am hungry|please close the door|what time is it|have a nice day|"
    "I lost my keys|the food was great|two coffees please|my name is Leo|it is raining"
).split("|")
_MESSAGES = (
    "running late|see you at noon|the meeting moved|call me back|happy birthday|dinner is ready|"
    "the flight landed|thanks for the help|bring the keys|I am at the door|all tests passed|"
    "the parcel arrived|please send the file|good luck tomorrow"
).split("|")
_DISEASES = ["headache", "fever", "cough", "insomnia", "allergy", "nausea", "migraine", "fatigue"]
POOLS: dict[str, tuple[list[str], ...]] = {
    "person": (_FIRST, [" "], _LAST),
    "first_name": (_FIRST,),
    "city": (_CITIES,),
    "place": (_PLACES, [" "], _KINDS),
    "topic": (_ADJ, [" "], _NOUN),
    "title": (_NOUN, [" and "], _NOUN),
    "task": (_VERBS, [" "], _THINGS),
    "day": (_DAYS,),
    "date": (_MONTHS, [" "], _NUMBERS),
    "time": (_HOURS, _HALVES),
    "food": (_FOODS,),
    "product": (_GOODS,),
    "language": (_LANGS,),
    "symbol": (_SYMBOLS,),
    "color": (_COLORS,),
    "room": (_ROOMS,),
    "ingredient": (_INGREDIENTS,),
    "genre": (_GENRES,),
    "file": (_FILES, ["_", "-", ""], _NUMBERS, _EXTS),
    "folder": (["/home/", "/data/", "/tmp/", "/srv/"], _FILES),
    "team": (_CITIES, [" "], _TEAMS),
    "sport": (_SPORTS,),
    "email": ([n.lower() for n in _FIRST], ["@"], _MAILS),
    "sentence": (_PHRASES,),
    "message": (_MESSAGES,),
    "street": (_NUMBERS, [" "], _PLACES, [" Street", " Road", " Lane", " Avenue"]),
    "symptom": (_DISEASES,),
    "order_id": (["A", "B", "K", "X"], _NUMBERS, _NUMBERS, ["7", "3", "0"]),
    "flight": (["LH", "AF", "BA", "UA", "KL"], _NUMBERS, _NUMBERS),
    "word": (_NOUN,),
}

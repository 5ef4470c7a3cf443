"""The words of word problems, as pieces of regular expressions."""

TAKES = (
    r"gives?|gave|giving|eats?|ate|loses?|lost|uses?|used|spends?|spent|breaks?|broke|broken|throws?|threw"
    r"|thrown|donates?|donated|drinks?|drank|leaves?|left|takes? away|removes?|removed|flew|flies|fly|pays?"
    r"|paid|lends?|lent|sold|sells?|melted|melts?|rotten|absent|gets? off|got off|dies?|died|returns?"
    r"|returned|burnt|burned|pops?|popped|wilted|fewer|less"
)
VERBS = (
    rf"{TAKES}|buys?|bought|gets?|got|receives?|received|finds?|found|picks?|picked|bakes?|baked|adds?|added"
    r"|makes?|made|collects?|collected|earns?|earned|saves?|saved|wins?|won|has|have|had|plants?|planted|draws?"
    r"|drew|reads?|puts?|packs?|shares?|splits?|divides?|orders?|ordered|borrows?|borrowed|gets? on|got on"
    r"|walks?|runs?|drives?|works?|swims?"
)
RATE = r"each|every|per|apiece|an? (?:day|week|month|year|hour|minute|box|bag|piece|kilometer|night)"
SPAN = {
    "minute": ("hour", 60),
    "hour": ("day", 24),
    "day": ("week", 7),
    "week": ("month", 4),
    "month": ("year", 12),
}
PERIOD = r"(?:minute|hour|day|week|month|year|night)"
ALL = r"altogether|in total|in all|total|together|combined|both|left|remain|still|change|over\b|now"
ON_EACH = (
    r"holds?|contains?|has|costs?|weighs?|sells?|sold|needs?|takes?|for|worth|earns?|gives?|at|is|gets?|eats?"
)

"""The word lists of the English frames (`fact_frames`)."""

from collections.abc import Mapping
from typing import Final

from loom.domain.memory.fact_frames import words

_LANGUAGES: Final = words(
    "english german french spanish italian portuguese dutch russian ukrainian polish czech slovak turkish greek"
    " arabic hebrew hindi bengali urdu chinese mandarin cantonese japanese korean vietnamese thai swedish norwegian"
    " danish finnish hungarian romanian bulgarian serbian croatian catalan persian farsi indonesian malay swahili"
    " latin welsh irish esperanto tamil"
)
_NATIONS: Final = words(
    "american british canadian australian austrian belgian brazilian argentinian mexican chilean colombian swiss"
    " indian pakistani iranian egyptian nigerian kenyan south_african ethiopian filipino scottish israeli lebanese"
    " syrian taiwanese singaporean european african asian"
)
_THIS: Final = r"(?:this|that|these|those|it|them|him|her|you|your|its|his|their)"
_FORM: Final = words(
    "emojis? emoticons? bullet[-_]?points? bullets bullet_lists? lists? numbered_lists tables? headings headers"
    " markdown plain_text em[-_]dash(?:es)? exclamation_(?:marks|points) semicolons trailing_commas tabs spaces"
    " jargon buzzwords metric_system metric imperial_system imperial celsius fahrenheit kilomet(?:re|er)s miles"
    " kilograms kilos pounds euros? dollars 24[-_]hour 12[-_]hour iso[-_]?(?:8601)? british american oxford_commas?"
    " single_quotes double_quotes type_hints docstrings snake_?case camel_?case italics bold filler_words"
    " introductions intros small_talk pleasantries apologies apologi[sz]ing disclaimers flattery greetings comments"
    " formal informal simple_(?:words|language|english|terms) plain_english layman's_terms dark_mode light_mode"
    " abbreviations acronyms passive_voice puns jokes sarcasm footnotes citations prose"
    " short_(?:answers|sentences|replies|lines|paragraphs) shorter long_(?:answers|replies) brief concise"
    " lower_?case upper_?case ascii hashtags slang swear_words code_blocks diagrams contractions"
)
"""What the form of answers and code is made of."""
_MANNER: Final = words(
    "short shorter brief concise terse succinct direct blunt honest critical polite formal informal casual friendly"
    " to_the_point simple strict crisp compact minimal factual neutral less_(?:formal|verbose|wordy)"
    " more_(?:concise|direct) detailed thorough precise"
)
_ANSWERS: Final = words(
    "answers? replies reply responses? messages explanations summaries emails output sentences texts"
)
_REPLY: Final = words("answer reply respond write talk speak communicate chat explain_(?:things|everything)")
_KIN: Final = words(
    "wife husband hubby gf bf partner spouse girlfriend boyfriend fianc[ée]e? sons? daughters? kids? child children"
    " baby twins mother mom mum mama father dad papa parents brothers? sisters? siblings? grandmother grandma"
    " grandfather grandpa uncle aunt nephew niece cousin grandson granddaughter grandchildren flatmate roommate"
)
_CHIEFS: Final = words(
    "boss manager team_lead supervisor assistant colleague co-?worker teacher doctor dentist landlord neighbou?r"
)
_PETS: Final = words(
    "dogs? cats? pupp(?:y|ies) kittens? parrots? rabbits? hamsters? horses? chickens? hens guinea_pigs? tortoise"
    " retriever labrador poodle beagle terrier dachshund husky corgi spaniel collie german_shepherd"
    " turtles? goldfish fish snake lizard bunny pets? budgies? canary ferrets? goats? sheep cows? pon(?:y|ies)"
)
_COUNT: Final = r"(?:an?|one|two|three|four|five|six|seven|several|\d|no|twin|my own)"
ENGLISH_WORDS: Final[Mapping[str, str]] = {
    "end": r"(?=\s*(?:$|[,.!;:)(—–-]|(?:and|but|so|because|please|by the way|btw|thanks|if possible)\b))",
    "this": _THIS,
    "thing": (
        rf"(?!(?:{_THIS}|the|how|to|that|what|when|where|why|one|some|if|x|not|myself|more|same)\b)"
        r"[\w\d'\"`.+#/-]+"
    ),
    "tool": (
        rf"(?!(?:{_THIS}|the|an?|how|to|what|one|two|some|same|wrong|x|not|my|our|his|more|any|every|each|up|into"
        r"|out|for|in|on|at|different|another|several|many|lots|as|by|with|and|debug|verbose)\b)[\w\d'`.+#/@-]+"
    ),
    "colour": (
        r"(?:(?:dark|light|bright|pale|deep|red|green|blue|yellow|orange|purple|pink|black|white|gr[ae]y)\b"
        r"(?! (?:mode|theme)))"
    ),
    "value": (
        rf"(?!(?:{_THIS}|in|not|wrong|missing|empty|null|undefined|shown|displayed|being|the|what|where|how|too|no"
        r"|never|correct|incorrect|used|set|stored|cut|truncated|duplicated|required|invalid|there|gone|visible"
        r"|hidden|broken|taken|read|printed|hard-?coded|optional|supposed|probably|\w+ing)\b)[\w(+\"'@]\S*"
    ),
    "name": (
        r"(?!(?:twice|by|when|if|at|on|back|later|in|before|after|for|an?|the|again|when|once|crazy|function|method"
        r"|stupid|first|not|name|accident|this|that|it|mistake|default)\b)[\w'.-]+(?: (?!and\b|but\b)[\w'.-]+){0,2}"
    ),
    "Name": r"(?-i:[A-Z][\w'-]+)",
    "place": (
        rf"(?!(?:{_THIS}|an?|my|our|fear|hope|dread|denial|constant|peace|darkness|vain|shame|hell|general|harmony|pain"
        r"|main|master|the (?!uk|us|usa|netherlands|philippines|north|south|east|west|countryside|city|suburbs"
        r"|mountains|bay area|alps|center|centre|czech|emirates|states)|next|step|line|top|bottom|mars|venus|another"
        r"|different|production)\b)(?:\w+|the \w+)|an? (?:\w+ )?(?:village|town|city|suburb|flat|apartment|house"
        r"|farm|boat|van|island|dorm)\b"
    ),
    "work": (
        rf"(?!(?:{_THIS}|the|an? (?:loop|way|hurry|circle|dog)|circles?|vain|progress|parallel|batches|silence|here"
        r"|most|my|our|some|every|both|general|now|first|expected|intended|before|well|long|all|main|production"
        r"|theory|fun|free|hours|days|weeks|months|years|nights|times|once|least|best|me|home)\b)\w+"
    ),
    "attribute": (
        words("full first last preferred middle legal")
        + "? ?"
        + words(
            "name nickname surname pronouns time_?zone birthday date_of_birth birth_?date age"
            " (?:first|native)_language mother_tongue nationality hometown home_town job job_title title role"
            " position occupation profession employer company e-?mail(?:_address)? (?:phone|mobile)(?:_number)?"
            " (?:home_|postal_|work_)?address handle username"
            " (?:github|gitlab|slack|twitter)(?:_handle|_username|_account)? height weight shoe_size blood_type"
            " religion major star_sign initials working_hours office_hours"
        )
    ),
    "language": _LANGUAGES,
    "nation": f"(?:{_NATIONS}|{_LANGUAGES}(?! ))",
    "role": (
        r"(?:[\w-]+,? ){0,4}?(?!(?:user|number|matter|letter|lover|loser|believer|beer|other|order|bummer|error"
        r"|mirror|sucker|quitter|goner|killer|wonder|stickler|minor)\b)(?:\w{2,}(?:er|or|eer|ist|ian|yst|man|woman"
        r"|ect|ician|ant)|nurse|student|chef|pilot|vet|coach|scientist|doctor|intern|journalist|clerk|freelance|lead"
        r"|ceo|cto|novice|newbie|professor|phd|parent|mom|mum|dad|mother|father|single parent|veteran|native|dba"
        r"|sysadmin|devops|midwife|judge|surgeon|consultant|founder|owner|vegetarian|vegan|carpenter|physicist"
        r"|non-native speaker|night owl|early bird|morning person|contractor|housewife|retiree|pensioner|au pair"
        r"|guide|monk|priest)\b(?! (?:to|who|that|than|thing)\b)"
    ),
    "group": words(
        "team company start-?up agency family couple non-?profit school bank charity lab shop studio band firm"
    ),
    "diet": words(
        "vegetarian vegan pescatarian pescetarian flexitarian celiac coeliac diabetic lactose[-_]intolerant"
        " gluten[-_](?:free|intolerant|sensitive) teetotal sober muslim jewish christian hindu buddhist catholic"
        " atheist asthmatic epileptic colou?r-?_?blind deaf blind hard_of_hearing dyslexic autistic short-?sighted"
        " near-?sighted dyscalculic neurodivergent left-?_?handed right-?_?handed pregnant married divorced widowed"
        " engaged_to retired self-?employed unemployed bilingual anemic anaemic hypoglycemic"
    ),
    "condition": (
        r"(?:(?:an? |severe |mild |chronic |bad |type \d ){0,2}(?:\w+ )?(?:adhd|autism|dyslexia|diabetes|asthma"
        r"|epilepsy|migraines?|celiac|coeliac|ibs|crohn'?s|allerg(?:y|ies)|hay ?fever|arthritis|carpal tunnel|rsi"
        r"|tinnitus|depression|anxiety|(?:high|low) blood pressure|insomnia|astigmatism|eczema|gout|intolerance"
        r"|hearing loss|low vision|bad (?:back|eyesight|knees?)|heart condition|food allerg\w+))\b"
    ),
    "substance": (
        r"(?!(?:yaml|xml|css|java\w*|php|bad|ugly|your|code|work|mondays|meetings|bugs|all|bullshit|fun|stupid\w*"
        r"|boilerplate)\b)\w+"
    ),
    "food": (rf"(?!(?:{_THIS}|the|an?|time|to|well|up|out|any idea|enough|much|breakfast yet)\b)\w+(?! my words)"),
    "kin": _KIN,
    "chief": _CHIEFS,
    "pet": _PETS,
    "relative": (
        r"(?:(?:older |younger |little |big |elder |eldest |youngest |oldest |late |best ){0,2}"
        rf"(?:{_KIN}|{_PETS}|friend|ex))"
    ),
    "count": _COUNT,
    "condition_of_kin": (
        r"(?!(?:waiting|asking|angry|here|away|asleep|sad|upset|late|sick|ill|sleeping|not|driving me|calling|home"
        r"|coming|mad|happy|crying|barking|visiting|null|undefined|missing|empty|node|process)\b)\w+"
    ),
    "project": (
        r"(?:[\w-]+ )??"
        + words(
            "apis? code code_?base back-?end front-?end servers? services? apps? repos? repository ci pipeline"
            " database db tests test_suite docs documentation wiki branch(?:es)? tickets releases? deployments?"
            " sprints? team company department projects? web_?site site stack infrastructure cluster staging"
            " production style_guide (?:code|coding)_style commits? commit_messages conventions? package_manager"
            " editor ide shell terminal os operating_system laptop computer pc phone machine keyboard monitor"
            " browser bank office working_hours fiscal_year release_day stand-?ups? port default_branch main_branch"
            " build_system framework orm fiscal_year linter formatter staging_server main_language python_version"
            " node_version language time_zone code_reviews? meetings? monorepo product customers? clients users"
            " timezone offices? registry cloud_provider"
        )
    ),
    "state": (
        r"(?:(?:down|broken|failing|slow|red|stuck|empty|missing|wrong|late|flaky|twice|full|dead|unreachable|ready"
        r"|done|fine|ok|okay|not|too|so|almost|again|null|undefined|crashing|weird|a mess|terrible|always|never"
        r"|unable|invalid|out)\b|(?!pending|existing)\w+ing\b)"
    ),
    "environment": (
        r"(?:windows|mac ?os(?: x)?|mac|a mac(?:book)?|linux|ubuntu|debian|fedora|arch(?: linux)?|nixos|wsl2?"
        r"|android|ios|an? (?:iphone|chromebook|m\d)|(?-i:[A-Z][\w.+#-]+)|\w+ v?\d[\w.]*)\b"
    ),
    "form": _FORM,
    "manner": _MANNER,
    "answers": _ANSWERS,
    "reply": _REPLY,
    "where": (
        r"(?:,? (?:please|everywhere|anywhere|at all|only|units?|spelling|english|dates?|times?|clock|notation"
        r"|format|style|tone|language|(?:and|or) [\w-]+|[\w-]+ (?:units|spelling|english|dates"
        r"|times))){0,3}(?:,? (?:in|for|with|when)(?: you)? (?:your|my|all|any|every|me\b|code|commits|answer\w*"
        r"|replying|writing|talking|repl\w+|indentation|units?|dates?|times?|measurements?|spelling|english|lists?"
        r"|notation|format|letters?|words?|characters?|text)[\w' ]{0,60}|,? (?:not|instead of|rather than"
        r"|over) [\w ]{1,60})?(?:,? please)?"
    ),
    "verb": (
        r"(?!(?:mind|ever|again|once|said|seen|been|had|got|done|gone|was|were|heard|tried|thought|knew|happy|glad"
        r"|there|wrong|true|false|null|the|an?|in|on|with|when|too|right|more|less|works?|be able|has|is|are|does|my"
        r"|your|our|this|that|these|it|me|you|i|we|came|saw|did|went|not|enough|finished|nice|good|sunny|same|one"
        r"|yours|came|sometimes|possible|available|up|off|down|at|for|of|to|late|first|last|if|because|since|as|and"
        r"|or|but|under|null|undefined|hangs?|open|ready|empty|forget|gets?|sees?|have|be|feel|seem|looks?|happens?"
        r"|comes?|ends?|takes?|wanted|equal|same|equals)\b|\w*(?<![su])s\b|\w+ing\b|(?!(?:need|embed|feed|seed"
        r"|exceed|proceed|shed|spread|heed)\b)\w+ed\b)[a-z'-]+"
    ),
    "habit": (
        r"(?:use|write|eat|drink|work|want|prefer|commit|squash|rebase|read|answer|sign|test|deploy|push|merge"
        r"|review|run|sleep|travel|fly|pay|cook|buy|format|lint|name|ship|release|log|code|type|listen|book|wear"
        r"|smoke|travel|document)"
    ),
    "bare": rf"(?!(?:{_THIS}|the|an?|my|our|your|other|another|old|new|all|both|some|one|x|y)\b)[\w.+#'-]+",
}

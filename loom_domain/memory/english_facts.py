"""How English sentences say something lasting about a person (`fact_frames`).

Sentences are compared after contractions are written out and fillers dropped, without regard to case.
"""

import re
from collections.abc import Mapping, Sequence
from typing import Final

from loom.domain.memory.english_words import ENGLISH_WORDS
from loom.domain.memory.fact_frames import Tables, by_subject, compiled

_SPOKEN: Final[Sequence[tuple[str, str]]] = (
    (r"[\u2018\u2019`]", "'"),
    (r"\bi'?m\b|\bi m\b", "I am"),
    (r"\b(?:can'?t|cannot)\b", "can not"),
    (r"\bwon'?t\b", "will not"),
    (r"\b(do|does|did|is|are|was|were|should|would|could|have|has)n'?t\b", r"\1 not"),
    (r"\b(i|we|you|they)'?ve\b", r"\1 have"),
    (r"\b(we|you|they)'re\b", r"\1 are"),
    (r"\b(i|we|you|they)'d\b|\bid(?= (?:rather|like|prefer))", r"\1 would"),
    (r"\b(i|we|you|it)'ll\b", r"\1 will"),
    (r"\b(name|that|it|timezone|birthday|job)'s\b", r"\1 is"),
    (r"\b(that)s\b(?= wrong)", r"\1 is"),
    (r"\blet'?s\b", "let us"),
    (r"\b(?:pls|plz|plse)\b", "please"),
    (r"\b(?:gonna)\b", "going to"),
    (r"\b(i|we) have got\b", r"\1 have"),
    (r"\b(i|we) (?:do|did)(?= (?:prefer|like|love|hate|use))", r"\1"),
    (
        r"\b(?:really|usually|generally|mostly|currently|recently|personally|strongly|basically|simply|kindly|just"
        r"|also|still|already|typically|normally|only|mainly|definitely|absolutely|both|all|originally|much"
        r"|(?<=i )now|(?<=we )now)\b(?! (?:-|me\b)) *",
        "",
    ),
)
"""What is replaced before a sentence is compared with the frames, in this order."""

_LEADS: Final = (
    r"and|but|also|so|oh|ah|um|ok(?:ay)?|well|hi(?: there| all)?|hello|hey(?: there)?|good (?:morning|evening)"
    r"|thanks|thank you|thx|ty|yes|yeah|yep|right|sure|sorry|please|by the way|btw|fyi|ps|note(?: that)?"
    r"|you should know(?: that)?|so you know|for context|for (?:me|us)|in general|since|because|as|nb|quick note"
    r"|one (?:more )?thing|honestly|could you|can you|would you|will you|to be (?:clear|honest)|at (?:work|home)"
    r"|in (?:our|my) (?:team|company|project)|here|preference|great|perfect|nice|cool"
)
"""Words before a sentence that don't change what it says."""
_REMEMBERS: Final = (
    r"(?:remember|(?:please )?(?:always )?keep in mind|bear in mind|do not forget|for (?:future reference"
    r"|the record)|make a note|note down|memori[sz]e)(?: that\b|[:,]|(?= (?:(?:i|we)\b|(?:my|our"
    r"|the) [\w '-]+? (?:is|are|was|has|have|uses?|runs?|starts?)\b)))(?! (?:one|bug|error|thing|file)\b)"
)
"""The person asks to remember the statement that follows."""
_STANDS: Final = (
    r"(?:from now on|from today on|going forward|moving forward|in (?:the )?future(?! tense)|henceforth|as a rule"
    r"|by default|until further notice|from here on out|as of now|in all (?:of )?your (?:answers|replies|responses))"
)
"""What follows, or precedes, is a standing order."""
_CORRECTS: Final = (
    r"(?:no|nope|wrong|actually|correction|(?:that|it) (?:is|was) (?:wrong|not right|incorrect)|you are (?:wrong"
    r"|mistaken))"
)

_TAKES_BACK: Final = r"(?:forget|disregard) that (?=i\b|we\b|my\b|our\b)"

_STATEMENTS: Final[Mapping[str, Sequence[str]]] = {
    "identity": (
        r"(?:my|our) {attribute} (?:is|are|=|:) {value}",
        r"my (?:birthday|date of birth) is (?:on|in) \w+",
        r"{language} is (?:not )?my (?:first|native|mother|second) (?:language|tongue)",
        r"(?:i|we) (?:live|reside|have (?:been living|lived)) (?:in|near|outside|at|on|close to) {place}",
        r"(?:i|we)(?: have)? (?:moved|relocated) (?:(?:back|over) )?(?:to|from) {place}",
        r"(?:moved|relocated) (?:(?:back|over) )?to {Name}(?: {Name})? (?:last|this|in|two|three|a few) \w+",
        r"(?:i am|we are) (?:based|located|living|working) (?:in|near|out of|from) {place}",
        r"(?:i am|we are|i come|we come) from (?!scratch|there|future|the future|here){place}",
        r"i (?:grew up|was born|was raised) (?:in|on|near) \w+",
        r"i (?:run|own|manage|started|founded|have) an? (?:[\w-]+ ){0,3}(?:bakery|business|company|shop|restaurant"
        r"|start-?up|studio|farm|agency|caf[eé]|blog|podcast|clinic)\b",
        r"i (?:lead|manage|head) (?:the|a) (?:[\w-]+ ){0,2}(?:team|department|group)",
        r"(?:i am|we are) on the (?:[\w-]+ ){1,2}team",
        r"i (?:play|practi[sc]e) (?:the )?(?:cello|piano|guitar|violin|drums|flute|bass|trumpet|saxophone|chess"
        r"|tennis|football|soccer|basketball|badminton|golf|hockey|volleyball|handball)",
        r"i do (?:intermittent fasting|yoga|pilates|cross-?fit|martial arts|judo|karate|ballet|gymnastics){end}",
        r"i do not have (?:an? |any )?(?:car|driver'?s licen[cs]e|kids|children|tv|pets?|smartphone)\b",
        r"i work (?:\d+|two|three|four|five) (?:days|hours) (?:a|per) (?:day|week)",
        r"my job is \w+ing \w+",
        r"i (?:drive|ride|commute by|commute with) (?:an? )?(?!{this}|the)\w+",
        r"i have (?:an? )?(?:phd|master'?s|bachelor'?s|degree|\d+ years|(?:ten|five|twenty|two|three) years of)\b",
        r"i have been (?:programming|coding|teaching|working) (?:for|since|as)\b",
        r"i (?:graduated|retired|started (?:a new job|working)) (?:from|in|at|as)",
        r"i (?:wake|get) up (?:early|late|at)|i (?:go to bed|start work|finish work) (?:early|late|at)",
        r"i know (?!{this}|the|how|what|why|that|where|when|nothing|it)\w+ (?:well|fluently|by heart|inside out)",
        r"i am (?:an expert|experienced|good|bad|not good|terrible|fluent) (?:in|at|with) (?!{this})\w+",
        r"i(?: can)? (?:speak|understand|read) (?:\w+ )?{language}",
        r"i do not (?:speak|understand) (?:\w+ )?{language}",
        r"i am (?:fluent in|a native|learning|studying|new to) (?!{this}|the|how)\w+",
        r"i(?: have)? (?:work|worked|am working) (?:as an? \w+|for {work}|at {work}|(?:in|with) {work}{end})",
        r"i (?:work|do) (?:from home|remote(?:ly)?|(?:night|day|late) ?shifts?|nights|mornings|evenings|weekends"
        r"|part[- ]time|full[- ]time|freelance|shifts|in shifts|(?:mondays|tuesdays|wednesdays|thursdays|fridays) )",
        r"i (?:work|study|teach|practi[sc]e) (?:mornings|evenings|(?-i:[A-Z])\w+|(?!hard|on|in|as|at|for|the|with"
        r"|like|it|from|this|around|here|to|fine|well|alone|too|so|now|my)\w+ (?:at|in) (?:the )?(?-i:[A-Z])\w+"
        r"|maths?|physics|law|medicine|biology|chemistry|economics|history|computer science|engineering|art|music"
        r"|yoga|psychology|linguistics)",
        r"i am (?:an?|one of the|the) {role}",
        r"i am the (?:\w+ )?(?:maintainer|owner|author|founder|lead|head|ceo|cto|admin|manager|product owner) (?:of"
        r"|at|for)",
        r"i am (?:a|an) (?:absolute |complete |total )?(?:beginner|newcomer)",
        r"we are an? (?:[\w-]+ ){0,3}{group}",
        r"i am \d\d?(?: years old)?(?: now)?{end}|i am \d\d? years",
        r"i (?:turn|turned|was) \d\d? (?:in|on|last|next|years)",
        r"i am {nation}{end}",
        r"(?:i am|we are) (?:in|on) (?:the )?(?:central european time|(?:eastern|pacific|mountain|central) time|utc"
        r"|gmt|cet|cest|est|edt|pst|pdt|bst|ist|jst|eet|\w+ time ?zone)",
        r"i go by {name}",
        r"(?:people|everybody|everyone|they|(?:my )?friends|(?:my )?colleagues) calls? me {name}",
        r"(?:you (?:can|may|should) )?call me {name}{end}",
        r"i am (?:called|named) {name}",
        r"(?:please use |i use )?(?:she/her|he/him|they/them|he/they|she/they|xe/xem)\b",
        r"(?:i am|this is) (?!(?-i:Done|Back|Ready|Sorry|Fine|Stuck|Lost|Confused|Not|Using|On|In|OK|Ok|Wrong|Just"
        r"|Getting|Having|Trying|Working|So|Very|Here|Happy|Good)\b){Name}(?: {Name})?(?: from \w+| at \w+| here"
        r"|{end})",
    ),
    "diet": (
        r"(?:i am|we are|i have been)(?: an?)? {diet}\b(?! (?:mode|option|menu|by) )",
        r"(?:i am|we are|my (?:{relative}) (?:is|are)) (?:\w+ly |very )?(?:allergic|intolerant"
        r"|sensitive) to {substance}",
        r"(?:i|we) (?:do not|never|can not|no longer|must not|should not) (?:eat|drink|consume|smoke|tolerate"
        r"|digest) {food}",
        r"(?:i|we) (?:can not|must not|should not) (?:have|take) {food}",
        r"(?:i|we) (?:eat|drink) (?:a lot of )?{food}",
        r"(?:i|we) avoid {thing}",
        r"(?:i am on|i follow|we follow|i keep|we keep) (?:an? [\w-]+(?: [\w-]+)? diet|kosher|halal)",
        r"(?:i have|i suffer from|i was diagnosed with|i have been diagnosed with|i live with) {condition}",
        r"my {relative} (?:has|have|suffers from) {condition}",
        r"i take {food}.* (?:once|twice|daily|every|three times)\b",
        r"i fast (?:during|in|on|every)",
        r"my doctor (?:told|advised|wants) me (?:not )?to \w+",
    ),
    "relation": (
        r"(?:my|our) (?:{relative}|{chief})(?:'s|s'?)? (?:first )?(?:name )?(?:is|are) (?:called |named )?{Name}",
        r"(?:my|our) (?:{relative}|{chief})(?:'s|s'?)?(?: name)? (?:is|are) (?:called|named) \w+",
        r"(?:my|our) (?:{relative}|{chief})(?:'s|s'?|') (?:names?|birthday|e-?mail|phone number|pronouns) (?:is"
        r"|are) {value}",
        r"(?:my|our) {relative},?(?: {Name},?)? (?:is|are) (?:an? )?{condition_of_kin}(?! error)",
        r"(?:my|our) {relative},?(?: {Name},?)? (?:turns|turned|works|lives|live|work|speaks?|studies|plays|loves"
        r"|hates|likes|eats|drinks|was born|goes to|does not eat|does not like|can not eat|turn) ",
        r"(?:i|we) (?:have|own|keep|adopted|got|bought) (?:{count} )?(?:\w+ )?(?:{kin}|{pet})(?:{end}| (?:(?:named"
        r"|called) \w+|in (?:school|college|kindergarten|{Name})|who|aged|that is|under|over|from {Name}))",
        r"i am (?:married|engaged) to",
        r"i am an? (?:\w+ )?(?:father|mother|parent|dad|mom|mum|grandmother|grandfather) of",
        r"{Name} is (?:my|our) (?:{relative}|{chief}|project manager|product owner|team lead)",
    ),
    "tools": (
        r"(?:i|we|our team|my team|the team|our company) (?:do not |never |always |no longer )?(?:use"
        r"|uses) (?!a lot)(?:{tool}|an? (?:[\w-]+ )?(?:keyboard|monorepo|mac\w*|pc|laptop|screen ?reader|trackpad"
        r"|tiling window manager|linter|formatter|password manager|vpn)\b)",
        r"we have (?:a monorepo|microservices|\w+-week sprints|code freeze|no staging)",
        r"(?:i|we|our team|my team) (?:do not |never |always |no longer )?(?:deploy|build|host|test|ship|release"
        r"|lint|format|run) (?:\w+ )?(?:with|to|on|via|using|in|by) {tool}",
        r"(?:i|we|our team) (?:do not |never |always |no longer )?(?:write|develop|code|program|document|track"
        r"|manage|keep) (?:\w+ )?(?:\w+ )?(?:in|with|as|on) (?:{tool}|the (?:imperative|present|past))",
        r"(?:i|we|our team|our company|our project) (?:do not |no longer )?(?:follow|follows|practi[sc]e|target"
        r"|support|require|enforce) (?:{tool}|(?:one|two|three|\d) \w+)",
        r"we (?:always |never |do not )?(?:squash|rebase|deploy|release|tag|version|merge|pin|vendor|name|review"
        r"|indent|prefix|sign) \w+",
        r"(?:our|my) {project} (?:is|are) (?:all )?(?!{state}|(?:in|on|at) (?:the|an?|my|your)\b"
        r"|\w+/|(?:attached|blocked|due|below|above|inside|open|public|private)\b)\w+",
        r"(?:our|my) {project} (?:uses?|runs? (?:on|under|in|with)|runs (?-i:[A-Z])|follows?|lives? (?:in|on|at)"
        r"|requires?|targets?|supports?|consists? of|starts (?:in|on|at)|ends in|closes|happens?|deploys? (?:to|with"
        r"|on)|speaks?|listens? on) (?!{this})\w+",
        r"(?:i am|we are) (?:using|running) {environment}",
        r"(?:i am|we are) on (?:windows|mac ?os|mac|a mac(?:book)?|linux|ubuntu|debian|fedora|arch|nixos|wsl2?"
        r"|android|ios|an? (?:iphone|chromebook|m\d)|python|node|java|postgres)\b",
        r"we call our {project} \w+",
        r"we do not (?:allow|accept|permit|tolerate) {thing}",
        r"{Name} is (?:our|my) (?:[\w-]+ )?{project}{end}",
    ),
    "preference": (
        r"(?:i|we) (?:always )?(?:prefer|like|love|hate|dislike|favou?r|enjoy|detest|loathe|do not (?:like|enjoy)"
        r"|can not stand|am (?:not )?an? (?:huge |big )?fan of|am into|am not into|do not care for) (?!a (?:summary"
        r"|lot|bit)){thing}",
        r"(?:i|we) (?:like|prefer|love|hate) to be (?:addressed|called|asked|told)|(?:i|we) (?:hate|love|like"
        r"|do not like|can not stand) (?:it )?when (?:people|you|someone|code|answers)|(?:i|we) (?:like|prefer|love"
        r"|hate) to (?!see|know|have|point|think|fix|be)\w+",
        r"(?:i|we) (?:prefer|like|love) the (?:metric|terminal|command line|dark|light|oxford|window|aisle"
        r"|imperative|keyboard)",
        r"(?:i|we) (?:would )?(?:prefer|rather|like|love|want|need|expect|appreciate|do not want|do not need"
        r"|do not like)(?: you)?(?: to)?(?: have| see| get| use| be| write| answer| reply| skip| avoid| keep"
        r"| leave out| fewer| less| more| no| give me| not| read| receive| always){0,4}(?: the| your| my| any"
        r"| all)?(?: [\w-]+)? (?:{form}|{manner} {answers}|{answers} in {language}){where}{end}",
        r"(?:i|we) (?:would )?(?:want|like|prefer|expect|need|rather|ask) you (?:to )?(?:always|never|not ever)\b",
        r"(?:i|we) (?:would )?(?:rather|prefer|want|like)(?: you)?(?: to)? (?:{reply}"
        r"|have {answers}) (?:to me )?in (?:{language}|{form})",
        r"(?:i|we) would (?:rather|prefer)(?: to)? have (?:code|functions|commits|{answers}) (?:without|with|in)"
        r" (?:{form}|{language}){end}",
        r"my (?:favou?rite|preferred) (?:[\w-]+ ){1,3}(?:is|are) {value}",
        r"(?:i|we) find (?!{this})[\w ]*(?:{form}|{answers}) (?:annoying|distracting|hard to read|confusing|useless"
        r"|helpful)",
    ),
    "habit": (r"(?:i|we) (?:always|never|do not ever) {habit} (?!{this}\b|the (?:wrong|same))\w+",),
    "change": (
        r"(?:i|we) no longer (?:live|work|use|eat|drink|need|want|support|like|prefer|deploy|have) \w+",
        r"(?:i|we) do not (?:live|work|use|eat|drink) .+ any ?more",
        r"(?:i|we) (?:have )?(?:quit|stopped) (?:smoking|drinking|eating|using) \w+",
    ),
    "decision": (
        r"(?:i|we)(?: have)? (?:decided|agreed)(?: (?:that|on|against|to|not to|upon"
        r"|in favou?r of))? (?!skip|ignore|try|leave|wait|do|go back|stop|anything|yet|{this}"
        r"|(?:rename|rewrite|refactor|remove|delete|split|extract|inline|fix|debug|add) (?:the|an?|my|our)\b){thing}",
        r"(?:i|we)(?: have)? (?:settled on|standardi[sz]ed on|switched (?:to|from|over to)|migrated (?:to|from)"
        r"|chosen|chose|picked|adopted|banned|dropped support for|opted for|committed to|deprecated)"
        r" (?!{colour}|an? (?:random|different|new|simple|other|{colour})\b){thing}",
        r"(?:i am|we are) (?:going with|sticking with|standardi[sz]ing on|moving to|switching to|migrating to"
        r"|dropping support for) {thing}",
        r"let us (?:go with|stick (?:with|to)|settle on|standardi[sz]e on) (?!{this}\b|what|plan|one|an?\b|{colour}"
        r"|the (?:{colour}|task"
        r"|plan|point|topic|facts|original|current)|facts)\w+",
        r"(?:the|our|my) decision (?:is|was) \w+",
        r"decision: *\w+",
    ),
}
"""What a person says of themselves and their team, by subject."""

_REQUESTS: Final[Mapping[str, Sequence[str]]] = {
    "order": (
        r"(?:you (?:should|must|can|have to) |we (?:should|must) |make sure (?:to |that you |you )|be sure to "
        r"|remember to )?(?:always|never|(?:do not|never) ever) {verb}\b",
        r"(?:do not|never) {verb} .*\b(?:without asking|without my|unless i)\b",
        r"(?:(?:before|after) (?:every|each|any|all)|(?:for|in|on) (?:all|every|any|each) (?:new |my |our "
        r"|your )?(?:commits?|prs?|pull requests?|reviews?|code reviews?|answers?|repl(?:y|ies)|projects?|reports?"
        r"|documents?|e-?mails?|meetings?|releases?|questions?)|(?:whenever|every time|each time|any time|anytime"
        r"|when|if) (?:you|we|i ask)(?! (?:see|get|got|start|are done|have|finish|fix|see)))\b[^,]*, (?:please "
        r"|always |never |do not ){0,4}(?!(?:we|i|it|the|he|she|they|you|there|my|our|nothing|everything|an?|what"
        r"|that|this|could|can|would)\b){verb}\b",
        r"ask (?:me )?before (?:you )?\w+(?:ing)? (?:any|every|all)\w*",
    ),
    "answers": (
        r"(?:do not |never |always )?{reply}(?: (?:to me|me|back|with me|in|everything|always|with"
        r"|only)){0,4} in (?:{language}|simple|plain|short|full|bullet|one (?:sentence|line|paragraph)|(?:one|two"
        r"|three|a few) (?:or \w+ )?(?:sentences|lines|paragraphs)|prose|markdown|lower ?case|british|american"
        r"|{form})(?: (?:text|english|words|sentences|terms|points|prose|language|lists?))?{where}{end}",
        r"(?:do not|stop|never|avoid|no|without|skip|leave out|omit|drop|use|add|include|less|fewer|more"
        r"|no more)(?: use| using| add| adding| include| including| write| writing| put| give me| the| any| your"
        r"| so many| with| me){0,4}(?: (?!an?\b|this\b|that\b|my\b)[\w-]+)?? {form}{where}{end}",
        r"(?:be|sound) (?:more |less |very |as |a bit |a little ){0,4}{manner}(?: as possible)?{where}{end}",
        r"be (?:more |less )?{manner} (?:with|in|when)",
        r"keep (?:your|the|all|my|all your) (?:\w+ )?(?:{answers}|it)(?: to me)? (?:\w+ )?(?:{manner}|under|below"
        r"|to (?:a|one|two|three|\d))",
        r"(?:explain|describe) (?:things|everything|concepts|your \w+|code|it all)(?: to me)? (?:step by step|in"
        r"|simply|like|briefly|with|using|as)",
        r"(?:{manner}|{language}|metric|shorter) (?:{answers}|units)(?: only)?(?:,? please)?{end}",
        r"(?!short|brief|concise|tables?\b|lists?\b){form}(?: only)?,? please{end}",
        r"(?:prices|temperatures|dates|times|units|distances|weights|lengths|measurements|numbers"
        r"|amounts) (?:always )?in \w+",
        r"(?:do not|stop) (?:apologi[sz]\w+|flatter\w*|prais\w+|thank\w*|say\w*|us\w+ the word|call\w* me"
        r"|repeat\w* (?:my|yourself|the question)|lectur\w+|summari[sz]ing|being so|be so|sugar-?coat\w*|hedg\w+)\b",
        r"stop using (?!{this}|the|so|too|an?\b)\w+",
        r"(?:address|refer to) me (?:as|by|with)",
        r"use (?:the word )?{bare}(?: {bare})?,? (?:not|instead of|rather than|over) {bare}(?: {bare})?{end}",
        r"write (?:all |your |my |our )?(?:the )?(?:commit messages?|comments|code comments|docs|documentation|tests"
        r"|e-?mails|reports|{answers}) in {language}",
        r"use {form} (?:for|in) {bare}{end}",
        r"(?:write|format|give|show|put) (?:all |me )?(?:dates|times|temperatures|distances|numbers|units|prices"
        r"|amounts|names) (?:as|in|with) \w+",
        r"prefer {bare}(?: {bare})?,? (?:over|to|not|instead of) {bare}",
        r"show (?:me )?(?:code|the code|examples|commands?) (?:first|before)",
        r"cite (?:your )?sources|always cite",
    ),
}
"""What a person asks for in general, by subject. A request counts only at the beginning of a sentence."""

_CORRECTED: Final = (
    r"(?:(?:the|our|my) )?(?:[\w-]+ ){0,2}{project} (?:is|are) (?:called |named |on |in |at )?[\w.:/-]*\d",
    r"(?:(?:the|our|my) )?(?:[\w-]+ ){1,3}(?:is|are) (?=[\w.:/-]*[a-z])[\w.:/-]*\d",
    r"(?:my|our) (?:[\w-]+ ){1,3}(?:is|are) (?:called|named|spelled|written)\b",
)
"""What else counts after words such as "actually": values of names."""

_PASSING: Final = (
    r"\b(?:this (?!is\b)|these |those |that (?:one|file|test|function|error|bug|line|branch|idea|way)\b|(?:for|until"
    r"|as of|by) (?:now|today|tomorrow)(?! on)|today\b|tonight\b|tomorrow\b|yesterday\b|right now|at the moment"
    r"|this time|once\b(?! a)|again\b|lines? \d|step \d|option (?:\d|[a-d]\b)|never ever have|(?:below|above"
    r"|following)\b|(?:the )?(?:first|second|third|last|other|next|previous) (?:one|option|approach|version|file"
    r"|line|variant|paragraph|attempt|solution)\b|(?<!\w)here[.!]?$|temporarily|for the moment|in the meantime|asap)"
    r"|^(?!.*\b(?:always|never|every|whenever)\b).*\bfirst[.!]?$"
)
"""The sentence is about the task at hand."""
_DOUBTS: Final = (
    r"\b(?:if (?!possible|you (?:write|use|edit|change|add|need|are|delete|touch|create)|in doubt|unsure)|suppose"
    r"|imagine|pretend|assum\w+|what if|let us say|wish|maybe|perhaps|might|hypothetical\w*|as if|would (?:be|have)"
    r"|in the (?:story|scene|novel|book|film|movie)|said|says|say that|(?<!doctor )told|tells|asked|asks|wrote"
    r"|writes that|claims|complains?|according to|reads:|thinks?|joke|kidding|haha+|lol|lmao|quote[sd]?|for example"
    r"|e\.g|translate|trust me|used to|when (?:i|he|she|they) (?:say|said|was)|someone|somebody|users? \w+ that)\b"
    r"|[\U0001F600-\U0001F606\U0001F923]"
)
"""The sentence is a supposition, a joke, or tells what somebody else says."""
_SYMPTOMS: Final = (
    r"\w\(|[=!<>]=|=>| = |\b(?:\w*errors?|\w*exception|crash\w*|bugs?|fail(?:s|ed|ing|ure)?|broken|4\d\d|50\d"
    r"|time[- ]?outs?|traceback|segfaults?|null|undefined|nan|nothing|wrong|blank|hangs?|stuck|missing|out of memory"
    r"|race condition|no longer works|weird\w*|stack trace|returns?|throws?|does not (?:work|compile)|is not working"
    r"|(?:in|on|at|inside|for|of|from) (?:the|an?|my|our|your) (?:[\w-]+ ){0,2}(?:zip|archive|attachment|folder"
    r"|directory|file|script|story|novel|book|game|level|dataset|data|fixture|example|demo|page|banner|header|footer|form|screen"
    r"|diagram|image|picture|screenshot|video|slide|post|chapter|exercise|function|class|method|module|loop|container"
    r"|docker\S*|branch|drive|parser|table|column)\b"
    r"|[\w/-]+\.(?:py|js|ts|tsx|c|h|cpp|rs|go|java|rb|php|json|ya?ml|toml|html|css|sh|md|txt))\b"
)
"""A statement with these words describes a problem, or the material at hand."""
_SECRETS: Final = (
    r"\b(?:pass(?:words?|phrases?|codes?)|pins?|(?:api|access|secret|private|ssh|licen[cs]e)[ _-]?keys?|keys?|tokens?"
    r"|secrets?|credentials?)\b"
)
"""Names of secrets. Every later run of the person reads what is remembered, and so would its model's provider."""
_TOLD_SECRETS: Final = (
    rf"\b(?:my|our)\b[\w ]*{_SECRETS}[\w .@-]{{0,40}}?(?:\b(?:is|are)\b|[=:])"
    rf"|{_SECRETS}[\w .@-]{{0,40}}?(?:\b(?:is|are)\b|[=:]) *\S*[\d_-]"
)
_ASKS: Final = (
    r"(?:what|how|why|where|who|whose|which|is|are|am|do(?! not)|does|did|should|shall|has|have (?:you|i|we)|was"
    r"|were|may|might|isn'?t|aren'?t|don'?t (?:you|we|i)|tell me)\b"
)
_REQUESTED: Final = (
    r"(?:please |always |do not |never |no ){0,4}(?!(?:i|we|it|the|an?|this|that|he|she|they|there|our|my"
    r"|things)\b){verb}\b",
    "keep it",
)
_CLAUSES: Final = r",\s+|\s+[-–—]+\s+|\s+(?:and|but|so|because|since|as)\s+(?=(?:i|we|my|our|they|everybody|people)\b)"


def english() -> Tables:
    """Return the tables of English."""
    return Tables(
        spoken=tuple((re.compile(pattern, re.IGNORECASE), plain) for pattern, plain in _SPOKEN),
        leads=re.compile(rf"(?:{_LEADS})\b(?!-)[ ,:!.-]*", re.IGNORECASE),
        remembers=re.compile(_REMEMBERS, re.IGNORECASE),
        corrects=re.compile(rf"{_CORRECTS}(?:[,:;!-]+ *| (?=i\b|we\b|my\b|our\b|it\b))|{_TAKES_BACK}", re.IGNORECASE),
        stands=re.compile(rf"^{_STANDS}[ ,:]*|,? {_STANDS}[.! ]*$", re.IGNORECASE),
        requested=compiled(_REQUESTED, ENGLISH_WORDS),
        polite=re.compile(r"(?:\w+,? )?(?:could|can|would|will) you (?:please |kindly |just ){0,4}", re.IGNORECASE),
        statements=by_subject(_STATEMENTS, ENGLISH_WORDS),
        requests=by_subject(_REQUESTS, ENGLISH_WORDS),
        corrected=compiled(_CORRECTED, ENGLISH_WORDS),
        passing=re.compile(_PASSING, re.IGNORECASE),
        doubts=re.compile(f"^{_ASKS}|{_DOUBTS}", re.IGNORECASE),
        symptoms=re.compile(_SYMPTOMS, re.IGNORECASE),
        secrets=re.compile(_SECRETS, re.IGNORECASE),
        told_secrets=re.compile(_TOLD_SECRETS, re.IGNORECASE),
        clauses=re.compile(_CLAUSES, re.IGNORECASE),
    )

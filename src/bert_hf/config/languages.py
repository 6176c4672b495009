"""Checks the codes of languages, and finds the two-letter code of a language whose three-letter code is given."""

import re

from bert_hf.errors import InputError

# The codes of ISO 639-2 (both, where there are two) and 639-3 that have a two-letter code in ISO 639-1. The rules that
# split sentences know languages by that one.
_TWO_LETTERS = (
    "aar-aa abk-ab afr-af aka-ak alb-sq amh-am ara-ar arg-an arm-hy asm-as ava-av ave-ae aym-ay aze-az bak-ba bam-bm "
    "baq-eu bel-be ben-bn bis-bi bod-bo bos-bs bre-br bul-bg bur-my cat-ca ces-cs cha-ch che-ce chi-zh chu-cu chv-cv "
    "cor-kw cos-co cre-cr cym-cy cze-cs dan-da deu-de div-dv dut-nl dzo-dz ell-el eng-en epo-eo est-et eus-eu ewe-ee "
    "fao-fo fas-fa fij-fj fin-fi fra-fr fre-fr fry-fy ful-ff geo-ka ger-de gla-gd gle-ga glg-gl glv-gv gre-el grn-gn "
    "guj-gu hat-ht hau-ha hbs-sh heb-he her-hz hin-hi hmo-ho hrv-hr hun-hu hye-hy ibo-ig ice-is ido-io iii-ii iku-iu "
    "ile-ie ina-ia ind-id ipk-ik isl-is ita-it jav-jv jpn-ja kal-kl kan-kn kas-ks kat-ka kau-kr kaz-kk khm-km kik-ki "
    "kin-rw kir-ky kom-kv kon-kg kor-ko kua-kj kur-ku lao-lo lat-la lav-lv lim-li lin-ln lit-lt ltz-lb lub-lu lug-lg "
    "mac-mk mah-mh mal-ml mao-mi mar-mr may-ms mkd-mk mlg-mg mlt-mt mon-mn mri-mi msa-ms mya-my nau-na nav-nv nbl-nr "
    "nde-nd ndo-ng nep-ne nld-nl nno-nn nob-nb nor-no nya-ny oci-oc oji-oj ori-or orm-om oss-os pan-pa per-fa pli-pi "
    "pol-pl por-pt pus-ps que-qu roh-rm ron-ro rum-ro run-rn rus-ru sag-sg san-sa sin-si slk-sk slo-sk slv-sl sme-se "
    "smo-sm sna-sn snd-sd som-so sot-st spa-es sqi-sq srd-sc srp-sr ssw-ss sun-su swa-sw swe-sv tah-ty tam-ta tat-tt "
    "tel-te tgk-tg tgl-tl tha-th tib-bo tir-ti ton-to tsn-tn tso-ts tuk-tk tur-tr twi-tw uig-ug ukr-uk urd-ur uzb-uz "
    "ven-ve vie-vi vol-vo wel-cy wln-wa wol-wo xho-xh yid-yi yor-yo zha-za zho-zh zul-zu"
)
# Codes of ISO 639-3 for the usual form of a language, where the two-letter code is that of a group of forms: Mandarin,
# Standard Arabic, Persian and Dari, …
_USUAL_FORMS = "arb-ar azj-az cmn-zh ekk-et khk-mn lvs-lv npi-ne ory-or pes-fa prs-fa swh-sw uzn-uz ydd-yi zsm-ms"
_CODES = {pair[:3]: pair[4:] for pair in f"{_TWO_LETTERS} {_USUAL_FORMS}".split()}


def two_letter_code(language: str) -> str:
    """The code with its first part in two letters, where ISO 639 has such a code: `de-AT` for `deu-AT`."""
    code, dash, region = language.partition("-")
    return f"{_CODES.get(code, code)}{dash}{region}"


def checked_language(language: str | None) -> str | None:
    """The code of a language, in two letters where it has such a code; refuses what is no code.

    The model card and the rules that split sentences take codes alone.

    Raises:
        InputError: e.g. for the name of a language.
    """
    if language is None:
        return None
    if not re.fullmatch(r"[a-z]{2,3}(-[A-Za-z0-9]+)*", language):
        what = f"{language!r} is no ISO 639 code of a language"
        raise InputError(what, where="--language", remedy="give e.g. de")
    return two_letter_code(language)
